"""Functions that run a recovery at once, without waiting for the reaper."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from ..core.compat import DEFAULT_TASK_BACKEND_ALIAS
from ..core.operations import log_operation
from ..core.option_parsers import LONGEST_DURATION, parse_duration

if TYPE_CHECKING:
    from ..workflows.engine.repair import Repaired


def recover_stuck_workflows(*, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> list[Repaired]:
    """Advance workflows in which a node ended but its successors did not start; return a report for each.

    The reaper does the same in each pass. Each workflow is repaired with its subworkflows in a transaction of its own.
    If that fails, its report has an ``error`` and the others are still repaired. Raises ValueError for an unknown
    backend.
    """
    from ..core.backends import horsies_backend
    from ..workflows.engine.repair import repair

    repaired = repair(horsies_backend(backend).config.database)
    log_operation("workflow.recover", len(repaired), backend=backend)
    return repaired


def reclaim(older_than: timedelta | float | str, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> int:
    """Recover every task whose worker has sent no heartbeat for ``older_than``; return how many.

    CLAIMED tasks go back to PENDING; RUNNING tasks are retried or failed by their own retry policy, as the reaper does
    after its thresholds. ``older_than`` is seconds, a timedelta or a text like ``"90s"``. A duration that is too short
    takes tasks from live workers, which send a heartbeat only every ``runner_heartbeat_interval_ms``. Raises ValueError
    for anything that is not a duration, and for an unknown backend.
    """
    from ..core.backends import horsies_backend
    from ..models import Task
    from .crashed import recover_all
    from .duties import requeue

    silence = parse_duration(older_than)
    if silence is None:
        raise ValueError("reclaim() got None; allowed: seconds, a timedelta or a text like '90s'.")
    tasks = Task.objects.using(horsies_backend(backend).config.database)
    seconds = min(silence.total_seconds(), LONGEST_DURATION)
    count = sum(requeue(tasks.stale_claimed(seconds))) + recover_all(tasks.stale_running(seconds))
    log_operation("task.reclaim", count, older_than=f"{seconds:g}s", backend=backend)
    return count
