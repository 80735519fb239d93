"""Measures how soon a body starts after its task was sent, while tasks are sent on a fixed timetable.

The loop is open: a slow worker or a slow call does not delay the tasks that other processes send.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..drivers import Driver
from ..harness import Harness
from ..options import Options
from ..processes import WorkerGroup

#: Sending processes of the measure ``load``, beside a single one.
MANY: Final = 16

#: Sending processes of the measure ``curve``.
CURVE_SENDERS: Final = 4

#: Unmeasured tasks of each sending process, so that it and the workers have opened their connections.
WARM_UP: Final = 10

#: The share of a rate that senders must reach, else the chart of ``curve`` marks the point.
REACHED: Final = 0.95

#: Seconds before the first task of a load is due.
LEAD: Final = 0.3

#: ``curve`` ends when the workers need more seconds than this to catch up after a load.
_MAX_BEHIND: Final = 3.0

#: A metric with this in its name is stored, but not in the table.
_NOT_IN_TABLE: Final = " from call"

#: The end of the name of a metric with the rate that senders reached.
_SENT: Final = " sent/s"


@dataclass(frozen=True, slots=True)
class Load:
    """``count`` tasks, ``rate`` a second, evenly or in bursts of ``burst``, sent by ``senders`` processes in turn."""

    label: str
    rate: int
    count: int
    senders: int = 1
    burst: int = 1


class Waits(NamedTuple):
    """Milliseconds until a body starts, after its call returned and after it began, each in ascending order.

    ``rate`` is how many tasks a second were sent. ``behind`` is how many seconds after the last call the last body
    started.
    """

    from_return: list[float]
    from_call: list[float]
    rate: float
    behind: float


_ONE_SENDER: Final = (
    Load("50/s", 50, 500),
    Load("400/s", 400, 1_000),
    Load("2,000/s", 2_000, 2_000),
    Load("bursts", 400, 1_000, burst=20),
)

LOADS: Final = (
    *_ONE_SENDER,
    *(Load(f"{each.label} ×{MANY}", each.rate, each.count, MANY, each.burst) for each in _ONE_SENDER),
)

#: Rates in tasks a second: 2 s each, but at least 15 tasks and at most 2,000.
CURVE: Final = tuple(
    Load(f"{rate:,}/s", rate, min(2_000, max(15, 2 * rate)), CURVE_SENDERS)
    for rate in (1, 10, 50, 100, 400, 1_000, 2_000, 4_000, 8_000, 15_000)
)


def count_tasks(loads: Sequence[Load]) -> int:
    """Return how many tasks all loads have, with the unmeasured ones."""
    return WARM_UP * max(each.senders for each in loads) + sum(each.count for each in loads)


def is_in_table(metric: str) -> bool:
    """Return whether the table shows a metric of these measures."""
    return _NOT_IN_TABLE not in metric


def is_in_curve_table(metric: str) -> bool:
    """Return whether the table of ``curve`` shows a metric. The chart shows where the senders did not reach a rate."""
    return is_in_table(metric) and not metric.endswith(_SENT)


def load(harness: Harness, options: Options, loads: Sequence[Load] = LOADS) -> dict[str, float]:
    """Send at several rates, from one process and from many."""
    return _run_loads(harness, options, loads)


def curve(harness: Harness, options: Options, loads: Sequence[Load] = CURVE) -> dict[str, float]:
    """Raise the rate until the workers fall far behind."""
    return _run_loads(harness, options, loads, _MAX_BEHIND)


def _run_loads(
    harness: Harness, options: Options, loads: Sequence[Load], max_behind: float | None = None
) -> dict[str, float]:
    figures: dict[str, float] = {}
    with (
        harness.senders(max(each.senders for each in loads)) as senders,
        harness.workers(options.processes) as (group, slots),
    ):
        first = warm_up(harness, group, senders)
        for each in loads:
            waits = _run_load(harness, group, senders[: each.senders], each, first)
            figures |= _describe(each, waits)
            first += each.count
            if max_behind is not None and waits.behind > max_behind:
                break
    return figures | {"slots": slots, "began more than once": harness.probe.count_repeated(0, first)}


def warm_up(harness: Harness, group: WorkerGroup, senders: Sequence[Driver]) -> int:
    """Let every sender send some tasks. Return how many, which is the number of the next task."""
    for index, sender in enumerate(senders):
        sender.begin("send_each", first=index * WARM_UP, count=WARM_UP, pause=0.02)
    for sender in senders:
        sender.finish()
    count = len(senders) * WARM_UP
    _wait_until_idle(harness, group, 0, count)
    return count


def _run_load(harness: Harness, group: WorkerGroup, senders: Sequence[Driver], load: Load, first: int) -> Waits:
    start = time.monotonic() + LEAD
    for index, sender in enumerate(senders):
        sender.begin(
            "send_on_time",
            first=first,
            count=load.count,
            start=start,
            rate=load.rate,
            burst=load.burst,
            sender=index,
            senders=len(senders),
        )
    called_at, returned_at = [0.0] * load.count, [0.0] * load.count
    for index, sender in enumerate(senders):
        called_at[index :: len(senders)], returned_at[index :: len(senders)] = sender.finish()[0]
    _wait_until_idle(harness, group, first, load.count)
    started_at = [harness.probe.started_at(first + index) for index in range(load.count)]
    return Waits(
        _milliseconds(returned_at, started_at),
        _milliseconds(called_at, started_at),
        (load.count - load.burst) / (max(called_at) - min(called_at)),
        max(started_at) - max(returned_at),
    )


def _wait_until_idle(harness: Harness, group: WorkerGroup, first: int, count: int) -> None:
    """Wait until the workers have started and finished all tasks, none of which may be lost."""
    harness.call("add_sent", count=count)
    harness.wait_until_started(group, first, count)
    harness.wait_until_finished(group)
    harness.settle()


def _milliseconds(since: Sequence[float], until: Sequence[float]) -> list[float]:
    """Return the sorted differences; 0 for a body that started before its call returned."""
    return sorted(max(0.0, 1_000 * (end - begin)) for begin, end in zip(since, until, strict=True))


def _describe(load: Load, waits: Waits) -> dict[str, float]:
    return {
        p50(load): percentile(waits.from_return, 50),
        p99(load): percentile(waits.from_return, 99),
        sent(load): waits.rate,
        f"{load.label} p50 ms{_NOT_IN_TABLE}": percentile(waits.from_call, 50),
        f"{load.label} p99 ms{_NOT_IN_TABLE}": percentile(waits.from_call, 99),
    }


def p50(load: Load) -> str:
    """Return the name of the metric with the median wait of a load."""
    return f"{load.label} p50 ms"


def p99(load: Load) -> str:
    """Return the name of the metric with the wait that 99 of 100 tasks of a load don't exceed."""
    return f"{load.label} p99 ms"


def sent(load: Load) -> str:
    """Return the name of the metric with the rate that the senders of a load reached."""
    return load.label + _SENT


def percentile(ascending: Sequence[float], percent: int) -> float:
    """Return the smallest value that ``percent`` of 100 values don't exceed."""
    return ascending[-(-len(ascending) * percent // 100) - 1]
