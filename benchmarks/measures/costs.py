"""Counts statements, commits and WAL bytes of a task."""

from __future__ import annotations

from ..harness import Harness
from ..options import Options


def cost(harness: Harness, options: Options) -> dict[str, float]:
    """Drain no-ops while the server logs each statement; nothing is timed."""
    assert harness.postgres is not None
    count = max(100, int(options.tasks * harness.peer.task_share))
    harness.enqueue(count)
    before = harness.postgres.counters(harness.database)
    with harness.postgres.count_statements(harness.database) as count_statements:
        with harness.workers(options.processes) as (group, _):
            harness.wait_until_started(group, 0, count)
            harness.wait_until_finished(group)
        statements = count_statements()
    after = harness.postgres.counters(harness.database)
    figures = {} if statements is None else {"statements/task": statements / count}
    return figures | {
        "commits/task": (after.commits - before.commits) / count,
        "WAL bytes/task": (after.wal_bytes - before.wal_bytes) / count,
        "tasks": count,
    }
