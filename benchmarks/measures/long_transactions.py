"""Measures how a queue keeps up for minutes beside long transactions of another application.

The loop is open: tasks are sent on a timetable, whether the workers keep up or not. After a phase without them, readers
hold snapshots that overlap, so that vacuum can never remove the rows that died last. In the middle, a worker is
restarted. The measure ends with the sends, and does not wait for a backlog.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, Final

import psycopg

from ..drivers import Driver
from ..harness import Harness
from ..options import Options
from ..readers import Readers
from ..samples import Samples, write_csv
from .loads import LEAD, WARM_UP, percentile, warm_up

#: Tasks a second, and sending processes.
RATE: Final = 800
SENDERS: Final = 4

#: The most seconds without readers, and between samples.
_BASELINE_SECONDS: Final = 60.0
_SAMPLE_SECONDS: Final = 5.0

#: Seconds after the last send in which bodies may still begin.
_LAST_SECONDS: Final = 2.0

#: Seconds since the stop of a worker in which sends are around its restart.
_RESTART_SECONDS: Final = 15.0

#: The statements whose buffers are metrics.
CLAIM: Final = re.compile(r".*(SKIP LOCKED|claim_ready_runtime)", re.DOTALL)
_INSERT: Final = re.compile(r"INSERT|WITH input AS|.*insert_job_compat|COPY", re.DOTALL)

#: Phases of a run, by name: from when until when.
Phases = Mapping[str, tuple[float, float]]


class _Tasks:
    """When tasks were sent, and when their bodies began."""

    def __init__(self, harness: Harness, first: int, sends: Sequence[Future[Any]]) -> None:
        self._begun: list[float] = []
        tasks: list[tuple[float, float, float]] = []
        for sender, send in enumerate(sends):
            for index, (called, returned) in enumerate(zip(*send.result()[0], strict=True)):
                begun = harness.probe.started_at(first + sender + index * len(sends))
                self._begun += [begun] if begun else []
                # A task that has not begun has waited until now.
                wait = max(0.0, (begun or time.monotonic()) - returned)
                tasks.append((returned, 1_000 * (returned - called), 1_000 * wait))
        self._begun.sort()
        self._tasks = sorted(tasks)
        self._sent = [returned for returned, _, _ in self._tasks]
        self.end = self._sent[-1]

    def sent(self, start: float, end: float) -> int:
        """Return how many tasks were sent in a period."""
        return bisect_left(self._sent, end) - bisect_left(self._sent, start)

    def begun(self, start: float, end: float) -> int:
        """Return how many bodies began in a period."""
        return bisect_left(self._begun, end) - bisect_left(self._begun, start)

    def backlog(self, at: float) -> int:
        """Return how many tasks had been sent and had not begun."""
        return max(0, self.sent(0.0, at) - self.begun(0.0, at))

    def milliseconds(self, start: float, end: float) -> tuple[list[float], list[float]]:
        """Return the sorted durations of the calls, and the waits of the tasks, that were sent in a period."""
        tasks = self._tasks[bisect_left(self._sent, start) : bisect_left(self._sent, end)]
        return sorted(call for _, call, _ in tasks), sorted(wait for _, _, wait in tasks)


def max_tasks(options: Options) -> int:
    """Return the most tasks that the measure numbers."""
    return SENDERS * WARM_UP + round(60 * options.long_minutes * RATE)


def long_transactions(harness: Harness, options: Options) -> dict[str, float]:
    """Send for minutes beside readers, and restart a worker in the middle."""
    seconds, stopped_at = 60 * options.long_minutes, 0.0
    with ThreadPoolExecutor(SENDERS) as pool, harness.senders(SENDERS) as senders, ExitStack() as stack:
        restarted = stack.enter_context(ExitStack())
        group, slots = restarted.enter_context(harness.workers(1))
        groups = [group]
        if options.processes > 1:
            group, others = stack.enter_context(harness.workers(options.processes - 1))
            groups, slots = [*groups, group], slots + others
        first = warm_up(harness, group, senders)
        samples = Samples(stack.enter_context(psycopg.connect(harness.url, autocommit=True)))
        samples.take()
        start, baseline = time.monotonic() + LEAD, min(_BASELINE_SECONDS, seconds / 6)
        sends = _begin_sends(pool, senders, first, start, seconds)
        readers = Readers(harness.url, start + baseline)
        stack.callback(readers.close)
        while not all(send.done() for send in sends):
            time.sleep(min(_SAMPLE_SECONDS, seconds / 30))
            readers.update()
            samples.take()
            if not stopped_at and time.monotonic() > start + seconds / 2:
                stopped_at = time.monotonic()
                restarted.close()
                groups[0], _ = restarted.enter_context(harness.workers(1))
            for group in groups:
                group.raise_if_exited()
        harness.wait_until_started(groups[-1], first, round(seconds * RATE), _LAST_SECONDS)
        tasks = _Tasks(harness, first, sends)
    end = tasks.end
    phases = {"baseline": (start, start + baseline), "last tenth": (end - (end - start) / 10, end)}
    _write(options, harness.peer.name, samples, tasks, phases)
    return _describe(samples, tasks, phases, stopped_at) | {
        "sent/s": tasks.sent(0.0, end) / (end - start),
        "slots": slots,
        "began more than once": harness.probe.count_repeated(0, max_tasks(options)),
    }


def _begin_sends(
    pool: ThreadPoolExecutor, senders: Sequence[Driver], first: int, start: float, seconds: float
) -> list[Future[Any]]:
    timetable = {"first": first, "count": round(seconds * RATE), "start": start, "rate": RATE, "burst": 1}
    for index, sender in enumerate(senders):
        sender.begin("send_on_time", **timetable, sender=index, senders=len(senders), until=start + seconds)
    return [pool.submit(sender.finish) for sender in senders]


def _describe(samples: Samples, tasks: _Tasks, phases: Phases, stopped_at: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    for phase, (start, end) in phases.items():
        calls, waits = tasks.milliseconds(start, end)
        before, after = samples.at(start), samples.at(end)
        figures |= {
            f"{phase}, tasks/s": tasks.begun(start, end) / (end - start),
            f"{phase}, p50 ms": percentile(waits, 50),
            f"{phase}, p99 ms": percentile(waits, 99),
            f"{phase}, send p50 ms": percentile(calls, 50),
            f"{phase}, buffers/task": (after.buffers - before.buffers) / max(1, tasks.begun(before.at, after.at)),
        }
        for name, pattern in (("INSERT", _INSERT), ("claim", CLAIM)):
            if (buffers := after.buffers_per_call(before, pattern)) is not None:
                figures[f"{phase}, buffers/{name}"] = buffers
    _, waits = tasks.milliseconds(0.0, tasks.end)
    if around := tasks.milliseconds(stopped_at, stopped_at + _RESTART_SECONDS)[1]:
        figures["restart, p99 ms"] = percentile(around, 99)
    return {
        "last tenth to baseline": figures["last tenth, tasks/s"] / max(1.0, figures["baseline, tasks/s"]),
        **figures,
        "p50 ms": percentile(waits, 50),
        "p99 ms": percentile(waits, 99),
        "most backlog": max(tasks.backlog(sample.at) for sample in samples),
        "backlog at the end": tasks.backlog(tasks.end),
        "most dead rows": max(sample.dead_rows for sample in samples),
        "tables at the start, MiB": samples[0].table_bytes / 2**20,
        "tables at the end, MiB": samples[-1].table_bytes / 2**20,
        "indexes at the start, MiB": samples[0].index_bytes / 2**20,
        "indexes at the end, MiB": samples[-1].index_bytes / 2**20,
    }


def _write(options: Options, peer: str, samples: Samples, tasks: _Tasks, phases: Phases) -> None:
    """Write a line for each sample, and one for each statement if the server counts them."""
    path = options.folder / "results" / f"{time.strftime('%Y-%m-%d-%H%M%S')}-long-{peer}.csv"
    rows = []
    for earlier, later in pairwise(samples):
        moved = [count(earlier.at, later.at) for count in (tasks.sent, tasks.begun)]
        buffers = later.buffers - earlier.buffers
        state = [later.snapshots, later.dead_rows, later.table_bytes, later.index_bytes]
        rows.append([round(later.at - phases["baseline"][0], 1), *moved, tasks.backlog(later.at), buffers, *state])
    head = "seconds,sent,begun,backlog,buffers,snapshots,dead rows,bytes of tables,bytes of indexes"
    write_csv(path, head.split(","), rows)
    if samples[-1].statements:
        samples.write_statements(path.with_suffix(".statements.csv"), phases)
