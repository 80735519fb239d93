"""Measures how fast workers drain a full queue, and how near that is to what the database allows.

The main rate runs from the start of the first body until the peer's own store has all tasks as finished. Workers start
after the queue is full; a second rate includes their start.
"""

from __future__ import annotations

import time

from ..drivers import PeerError
from ..harness import Harness
from ..options import Options


def drain(harness: Harness, options: Options) -> dict[str, float]:
    """Drain a queue of no-ops."""
    count = max(100, int(options.tasks * harness.peer.task_share))
    harness.enqueue(count)
    before = harness.counters()
    started = time.monotonic()
    with harness.workers(options.processes) as (group, slots):
        harness.wait_until_started(group, 0, count)
        harness.wait_until_finished(group)
        ended = time.monotonic()
    start_times = harness.probe.start_times(0, count)
    figures = {
        "tasks/s": count / (ended - start_times[0]),
        "tasks/s to the last start": (count - 1) / (start_times[-1] - start_times[0]),
        "tasks/s from the start of the worker": count / (ended - started),
        "slots": slots,
        "tasks": count,
        "began more than once": harness.probe.count_repeated(0, count),
    }
    if before and (after := harness.counters()):
        figures["commits/task"] = (after.commits - before.commits) / count
        figures["WAL bytes/task"] = (after.wal_bytes - before.wal_bytes) / count
    return figures


def floor(harness: Harness, options: Options) -> dict[str, float]:
    """Drain with bare loops around the worker's statement, and then with the worker."""
    harness.enqueue(options.tasks)
    bare = options.tasks / float(harness.run_module("benchmarks.floor", str(options.processes)))
    if left := harness.call("count_unfinished"):
        raise PeerError(f"bare loops left {left} tasks unfinished")
    harness.call("clear_tasks")
    rate = drain(harness, options)["tasks/s"]
    return {"share of bare loops": rate / bare, "tasks/s": rate, "tasks/s of bare loops": bare}
