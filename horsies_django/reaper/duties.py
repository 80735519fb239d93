"""The duties of a reaper, and the pass that runs them in order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from ..core.options import Options
from ..db.notifications import ANY_QUEUE, wake_after_commit
from ..models import Limit, Task, release_blocked
from ..models.check_migrated import raise_if_forbidden
from ..models.transitions import TaskQuerySet
from ..models.unreadable import IS_NEVER_CLAIMABLE
from ..workflows import gateway
from .batches import BatchResult, SkippedRows, fail_unreadable, run_all_batches, run_batch
from .crashed import recover_batch
from .pruning import prune_heartbeats, prune_tasks, prune_workers, prune_workflows
from .rollup import prune_rollups, roll_up
from .workflow_jobs import expire_paused_workflows, expire_workflows, repair_workflows

logger = logging.getLogger("horsies_django.reaper")

#: Batches of one duty in one pass; what is left waits for the next.
BATCHES_PER_PASS: Final = 40

NO_BATCH: Final = BatchResult(0, 0)

Duty = Callable[[Options, SkippedRows], BatchResult]


@dataclass(frozen=True, slots=True)
class DutyReport:
    """What one duty did in one pass; ``error`` if it could not go on."""

    duty: str
    count: int
    error: str = ""

    def __str__(self) -> str:
        return f"{self.duty}: {self.count}" + (f" (stopped by {self.error})" if self.error else "")


def requeue_stale_claimed(
    options: Options, refused: SkippedRows, may_judge: Callable[[], bool] = lambda: True
) -> BatchResult:
    """CLAIMED tasks whose claimer fell silent go back to PENDING."""
    recovery = options.recovery
    if not recovery.auto_requeue_stale_claimed:
        return NO_BATCH
    stale = _tasks(options).stale_claimed(recovery.claimed_stale_threshold_ms / 1_000)
    return run_batch(stale, _requeue, refused, may_act=may_judge, give_up=fail_unreadable)


def recover_stale_running(
    options: Options, refused: SkippedRows, may_judge: Callable[[], bool] = lambda: True
) -> BatchResult:
    """RUNNING tasks whose runner fell silent are retried or FAILED."""
    recovery = options.recovery
    if not recovery.auto_fail_stale_running:
        return NO_BATCH
    stale = _tasks(options).stale_running(recovery.running_stale_threshold_ms / 1_000)
    return recover_batch(stale, refused, may_act=may_judge)


def expire_overdue(options: Options, refused: SkippedRows) -> BatchResult:
    """PENDING tasks whose ``good_until`` has passed become EXPIRED."""
    overdue = _tasks(options).overdue().order_by("good_until")
    return run_batch(overdue, _expire, refused, give_up=fail_unreadable)


def fail_unreadable_dates(options: Options, refused: SkippedRows) -> BatchResult:
    """Fail PENDING tasks that no claim can find because one of their dates can't be read."""
    return run_batch(_tasks(options).filter(IS_NEVER_CLAIMABLE), lambda rows: rows.fail_unreadable(), refused)


def release_blocked_tasks(options: Options, refused: SkippedRows) -> BatchResult:
    """Release blocked tasks whose limit has room because the process that should have released them has died."""
    count = release_blocked.sweep(options.database)
    return BatchResult(count, count)


def prune_limits(options: Options, refused: SkippedRows) -> BatchResult:
    """Delete limits that have had no task for a day."""
    return BatchResult(0, Limit.objects.using(options.database).forget(_tasks(options)))  # all that there were


def requeue_all(stale: TaskQuerySet) -> int:
    """Put CLAIMED tasks back batch by batch; return how many there were."""
    return run_all_batches(lambda refused: run_batch(stale, _requeue, refused, give_up=fail_unreadable))


def _requeue(stale: TaskQuerySet) -> int:
    keys = list(stale.lock().values_list("pk", flat=True))
    wake_after_commit(stale.db, ANY_QUEUE)
    return stale.all_rows().filter(pk__in=keys).requeue()


def _expire(overdue: TaskQuerySet) -> int:
    free, nodes = gateway.lock_unless_locked(overdue)
    keys = list(free.lock().values_list("pk", flat=True))
    count = overdue.all_rows().filter(pk__in=keys).expire()
    gateway.advance_locked(overdue.db, nodes)
    return count


#: The duties that take a worker's silence for its death.
STALENESS_DUTIES: Final = {
    "requeued stale claims": requeue_stale_claimed,
    "recovered stale runs": recover_stale_running,
}

#: In the order of a pass. Each does one batch; one that finds nothing to do costs one statement and no transaction.
DUTIES: Final[dict[str, Duty]] = {
    **STALENESS_DUTIES,
    # Workflows before tasks: a step that waits has the deadline of its workflow, and would fail that with its own end.
    "expired overdue workflows": expire_workflows,
    "expired paused workflows": expire_paused_workflows,
    "expired overdue tasks": expire_overdue,
    "failed unreadable tasks": fail_unreadable_dates,
    "released blocked tasks": release_blocked_tasks,
    "repaired workflows": repair_workflows,
    # Before tasks go: an attempt goes with its task.
    "rolled up attempts": roll_up,
    "deleted ended workflows": prune_workflows,
    "deleted ended tasks": prune_tasks,
    "deleted old heartbeats": prune_heartbeats,
    "deleted old roll-ups": prune_rollups,
    "forgot dead workers": prune_workers,
    "forgot limits": prune_limits,
}


def run_pass(
    options: Options, is_mine: Callable[[], bool] = lambda: True, may_judge: Callable[[], bool] = lambda: True
) -> list[DutyReport]:
    """Run every duty once and return what each did, as long as the caller holds the lease.

    ``may_judge`` is asked, once stale tasks were found, whether their workers could have beaten since; if not, they are
    left to a later pass.

    One that fails does not keep the others from theirs, nor itself from the next pass. Raises MissingPrivilege where
    it fails for that: it would do so in every pass.
    """
    duties = DUTIES | {name: partial(duty, may_judge=may_judge) for name, duty in STALENESS_DUTIES.items()}
    return [_run(name, duty, options, is_mine) for name, duty in duties.items() if is_mine()]


def _run(name: str, duty: Duty, options: Options, is_mine: Callable[[], bool]) -> DutyReport:
    total, refused = 0, SkippedRows()
    try:
        for _ in range(BATCHES_PER_PASS):
            batch = duty(options, refused)
            total += batch.done
            if not batch.may_be_more or not is_mine():
                break
    except Exception as error:
        raise_if_forbidden(options.database, error)
        logger.exception("duty %r failed; the others go on", name)
        return DutyReport(name, total, repr(error))
    if total:
        logger.info("reaper %s: %d", name, total)
    return DutyReport(name, total)


def _tasks(options: Options) -> TaskQuerySet:
    return Task.objects.using(options.database)
