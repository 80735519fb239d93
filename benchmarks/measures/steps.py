"""Measures runs of five no-op steps each, whose values the peer's own store keeps.

The rate runs from the start of the first body until the store has all runs as finished. A second, smaller drain counts
statements, and is not timed.
"""

from __future__ import annotations

import time
from typing import Final

from ..harness import Harness
from ..options import Options

#: Steps of a run.
STEPS: Final = 5

#: The most runs of a drain, and the runs of the drain that counts statements.
_MAX_RUNS: Final = 4_000
_COUNTED: Final = 200


def max_tasks(options: Options) -> int:
    """Return the most runs that the measure numbers."""
    return _runs(options) + _COUNTED


def steps(harness: Harness, options: Options) -> dict[str, float]:
    """Drain a queue of runs, twice."""
    assert harness.postgres is not None
    runs = _runs(options)
    harness.enqueue(runs, "steps")
    before = harness.postgres.counters(harness.database)
    seconds, slots = _drain(harness, options, 0, runs)
    after = harness.postgres.counters(harness.database)
    figures = {
        "runs/s": runs / seconds,
        "WAL bytes/step": (after.wal_bytes - before.wal_bytes) / (STEPS * runs),
        "commits/step": (after.commits - before.commits) / (STEPS * runs),
        "slots": slots,
        "runs": runs,
    }
    harness.enqueue(_COUNTED, "steps", runs)
    with harness.postgres.count_statements(harness.database) as count_statements:
        _drain(harness, options, runs, _COUNTED)
        statements = count_statements()
    return figures | ({} if statements is None else {"statements/step": statements / (STEPS * _COUNTED)})


def _drain(harness: Harness, options: Options, first: int, count: int) -> tuple[float, int]:
    """Run these; return the seconds from the start of the first body, and the number of slots."""
    with harness.workers(options.processes) as (group, slots):
        harness.wait_until_started(group, first, count)
        harness.wait_until_finished(group)
        return time.monotonic() - harness.probe.start_times(first, count)[0], slots


def _runs(options: Options) -> int:
    return min(_MAX_RUNS, options.tasks)
