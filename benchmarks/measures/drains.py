"""How fast a full queue empties.

From the moment the first body begins to the moment the peer's own store has all tasks as finished. The workers are
started onto a queue that is full already, and how long it took from there is told too.
"""

from __future__ import annotations

import time

from ..options import Options
from ..stage import Stage


def drain(stage: Stage, options: Options) -> dict[str, float]:
    """Empty a queue of no-ops."""
    count = max(100, int(options.tasks * stage.peer.share))
    stage.fill(count)
    before = stage.counters()
    started = time.monotonic()
    with stage.workers(options.processes) as (group, slots):
        stage.wait_until_begun(group, 0, count)
        stage.wait_until_stored(group)
        ended = time.monotonic()
    moments = stage.probe.times(0, count)
    figures = {
        "tasks/s": count / (ended - moments[0]),
        "tasks/s to the last start": (count - 1) / (moments[-1] - moments[0]),
        "tasks/s from the start of the worker": count / (ended - started),
        "slots": slots,
        "tasks": count,
        "began more than once": stage.probe.repeated(0, count),
    }
    if before and (after := stage.counters()):
        figures["commits/task"] = (after.commits - before.commits) / count
        figures["WAL bytes/task"] = (after.wal_bytes - before.wal_bytes) / count
    return figures
