"""Recovery by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from ..core.compat import DEFAULT_TASK_BACKEND_ALIAS
from ..core.operations import log_operation
from ..core.option_parsers import LONGEST_DURATION, parse_duration

if TYPE_CHECKING:
    from ..workflows.engine.repair import Repaired


def recover_stuck_workflows(*, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> list[Repaired]:
    """Bring workflows up to date in which something has ended and nothing has followed; return what was done.

    A reaper does so in each pass. Each tree of workflows is repaired in a transaction of its own: one that can't be has
    an ``error`` in what is returned, and keeps no other from it. Raises ValueError for an unknown backend.
    """
    from ..core.backends import horsies_backend
    from ..workflows.engine.repair import repair

    repaired = repair(horsies_backend(backend).config.database)
    log_operation("workflow.recover", len(repaired), backend=backend)
    return repaired


def reclaim(older_than: timedelta | float | str, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> int:
    """Take back every task whose worker gave no sign of life for ``older_than``; return how many.

    CLAIMED ones go back to PENDING, RUNNING ones are retried or failed by their own policy, as a reaper does after its
    thresholds. Takes seconds, a timedelta or a text like ``"90s"``. Too short a time takes tasks from workers that
    live: one beats only every ``runner_heartbeat_interval_ms``. Raises ValueError for what is not a duration, or an
    unknown backend.
    """
    from ..core.backends import horsies_backend
    from ..models import Task
    from .crashed import recover_all
    from .duties import requeue_all

    silence = parse_duration(older_than)
    if silence is None:
        raise ValueError("reclaim() got None; allowed: seconds, a timedelta or a text like '90s'.")
    tasks = Task.objects.using(horsies_backend(backend).config.database)
    seconds = min(silence.total_seconds(), LONGEST_DURATION)
    count = requeue_all(tasks.stale_claimed(seconds)) + recover_all(tasks.stale_running(seconds))
    log_operation("task.reclaim", count, older_than=f"{seconds:g}s", backend=backend)
    return count
