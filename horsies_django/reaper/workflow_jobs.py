"""What a reaper does for workflows."""

from __future__ import annotations

from ..core.options import Options
from .batches import BatchResult, SkippedRows


def repair_workflows(options: Options, refused: SkippedRows) -> BatchResult:
    """Workflows in which something has ended and nothing has followed are brought up to date."""
    from ..workflows.engine import repair

    done = repair.repair(options.database)
    return BatchResult(len(done), len([each for each in done if each.ended_workflows or not each.error]))


def expire_workflows(options: Options, refused: SkippedRows) -> BatchResult:
    """Workflows whose ``good_until`` has passed become EXPIRED."""
    from ..workflows.engine import repair

    count = repair.expire(options.database)
    return BatchResult(count, count)


def expire_paused_workflows(options: Options, refused: SkippedRows) -> BatchResult:
    """Workflows that were PAUSED longer than ``paused_workflow_auto_cancel_after`` become EXPIRED."""
    from ..workflows.engine import repair

    after = options.recovery.paused_workflow_auto_cancel_after
    count = 0 if after is None else repair.expire_paused(options.database, after)
    return BatchResult(count, count)
