"""Measures coroutines: a drain beside that of threads, and the wait of new ones while thousands are in flight."""

from __future__ import annotations

import time
from typing import Final

from ..harness import Harness
from ..options import Options
from .latencies import waits_of

#: Coroutines in flight at once in one process.
IN_FLIGHT: Final = 10_000

#: Async slots that stay free for the new ones.
_FREE: Final = 100

#: Unmeasured tasks, and measured ones.
_WARM_UP: Final = 20
_SAMPLES: Final = 200

#: Mean seconds between new coroutines.
_PAUSE: Final = 0.02


def max_tasks(options: Options) -> int:
    """Return the most tasks that the measure numbers."""
    return max(2 * options.tasks, IN_FLIGHT + 2 * (_WARM_UP + _SAMPLES))


def coroutines(harness: Harness, options: Options) -> dict[str, float]:
    """Drain no-ops in threads and as coroutines; then compare waits in an empty and in a full process."""
    threads = _drain(harness, options, "noop", first=0)
    loop = _drain(harness, options, "anoop", first=options.tasks)
    harness.call("clear_tasks")
    harness.probe.clear()
    return {"tasks/s": loop, "tasks/s / threads'": loop / threads} | _waits(harness)


def _drain(harness: Harness, options: Options, body: str, first: int) -> float:
    """Return the rate of a drain."""
    harness.call("clear_tasks")
    harness.enqueue(options.tasks, body, first)
    with harness.workers(options.processes) as (group, _):
        harness.wait_until_started(group, first, options.tasks)
        harness.wait_until_finished(group)
        ended = time.monotonic()
    return options.tasks / (ended - harness.probe.start_times(first, options.tasks)[0])


def _waits(harness: Harness) -> dict[str, float]:
    """Return how many milliseconds a coroutine waits for its start, without others and beside many."""
    figures: dict[str, float] = {}
    with harness.workers(1, IN_FLIGHT + _FREE, commands="coroutine_worker_commands") as (group, _):
        first = IN_FLIGHT
        for others in (0, IN_FLIGHT):
            if others:
                harness.enqueue(others, "asleep")
                harness.wait_until_started(group, 0, others)
            harness.call("send_coroutines", first=first, count=_WARM_UP, pause=_PAUSE)
            harness.wait_until_started(group, first, _WARM_UP)
            first += _WARM_UP
            sent_at = harness.call("send_coroutines", first=first, count=_SAMPLES, pause=_PAUSE)
            harness.wait_until_started(group, first, _SAMPLES)
            waits = waits_of(harness, first, sent_at)
            figures |= {f"{name} beside {others:,}": wait for name, wait in waits.items()}
            first += _SAMPLES
        harness.wait_until_finished(group)
    return figures
