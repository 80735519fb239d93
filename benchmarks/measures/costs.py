"""What a task costs the database: statements, commits, bytes of its log."""

from __future__ import annotations

from ..options import Options
from ..stage import Stage


def cost(stage: Stage, options: Options) -> dict[str, float]:
    """Drain no-ops while the server writes down each statement; nothing is timed."""
    assert stage.postgres is not None
    count = max(100, int(options.tasks * stage.peer.share))
    stage.fill(count)
    before = stage.postgres.counters(stage.database)
    with stage.postgres.statements(stage.database) as statements:
        with stage.workers(options.processes) as (group, _):
            stage.wait_until_begun(group, 0, count)
            stage.wait_until_stored(group)
        told = statements()
    after = stage.postgres.counters(stage.database)
    figures = {} if told is None else {"statements/task": told / count}
    return figures | {
        "commits/task": (after.commits - before.commits) / count,
        "WAL bytes/task": (after.wal_bytes - before.wal_bytes) / count,
        "tasks": count,
    }
