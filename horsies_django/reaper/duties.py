"""The duties of a reaper, and the pass that runs them in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from django.db.models.functions import Coalesce

from ..core.options import Options
from ..db.expressions import NowPlus
from ..db.notifications import ANY_QUEUE, wake_after_commit
from ..models import Limit, Task, Workflow, release_blocked
from ..models.check_migrated import raise_if_forbidden
from ..models.claims import WORKFLOW_WAIT
from ..models.transitions import TaskQuerySet
from ..models.workflow import WorkflowQuerySet
from ..workflows import gateway
from .batches import in_batches
from .crashed import recover
from .prune import prune_heartbeats, prune_tasks, prune_workers, prune_workflows
from .rollup import prune_error_groups, prune_rollups, roll_up

logger = logging.getLogger("horsies_django.reaper")

#: Maximum batches of one duty in one pass; remaining rows wait for the next pass, which then follows at once.
BATCHES_PER_PASS: Final = 40

#: Yields how many rows each batch processed; stops once no batch makes progress.
Duty = Callable[[Options], Iterable[int]]


@dataclass(frozen=True, slots=True)
class DutyReport:
    """How many rows one duty processed in one pass, and whether more may be left.

    ``error`` is set if an exception stopped it.
    """

    duty: str
    count: int
    error: str = ""
    has_more: bool = False

    def __str__(self) -> str:
        return f"{self.duty}: {self.count}" + (f" (stopped by {self.error})" if self.error else "")


def requeue_stale_claimed(options: Options, may_detect_stale: Callable[[], bool] = lambda: True) -> Iterable[int]:
    """Requeue CLAIMED tasks whose worker stopped sending heartbeats."""
    recovery = options.recovery
    if not recovery.auto_requeue_stale_claimed:
        return ()
    stale = _tasks(options).stale_claimed(recovery.claimed_stale_after)
    return requeue(stale, may_detect_stale)


def recover_stale_running(options: Options, may_detect_stale: Callable[[], bool] = lambda: True) -> Iterable[int]:
    """Retry or fail RUNNING tasks whose worker stopped sending heartbeats."""
    recovery = options.recovery
    if not recovery.auto_fail_stale_running:
        return ()
    stale = _tasks(options).stale_running(recovery.running_stale_after)
    return recover(stale, may_act=may_detect_stale)


def expire_overdue(options: Options) -> Iterator[int]:
    """Expire PENDING tasks whose ``good_until`` has passed."""
    overdue = _tasks(options).overdue().order_by("good_until")
    return in_batches(overdue, _expire)


def release_blocked_tasks(options: Options) -> Iterator[int]:
    """Release blocked tasks whose concurrency limit has room; the process that should have released them died."""
    yield release_blocked.sweep(options.database)


def repair_workflows(options: Options) -> Iterator[int]:
    """Advance workflows in which a node ended but its successors did not start."""
    from ..workflows.engine import repair

    yield sum(bool(each.ended_workflows or not each.error) for each in repair.repair(options.database))


def expire_workflows(options: Options) -> Iterator[int]:
    """Expire workflows whose ``good_until`` has passed."""
    from ..workflows.engine import repair

    yield repair.expire(options.database)


def expire_paused_workflows(options: Options) -> Iterator[int]:
    """Expire workflows that have been PAUSED for longer than ``paused_workflow_auto_cancel_after``."""
    from ..workflows.engine import repair

    after = options.recovery.paused_workflow_auto_cancel_after
    if after is not None:
        yield repair.expire_paused(options.database, after)


def deliver_events(options: Options) -> Iterator[int]:
    """Wake tasks whose event has come; the process that should have woken them died."""
    return in_batches(_tasks(options).whose_event_came(), lambda batch: batch.wake())


def deliver_ends(options: Options) -> Iterator[int]:
    """Wake tasks that wait for workflows that have ended; the process that should have woken them died."""
    return in_batches(Workflow.objects.using(options.database).ended_awaited(), _deliver_ends)


def prune_limits(options: Options) -> Iterator[int]:
    """Delete concurrency limits that have had no task for a day."""
    yield Limit.objects.using(options.database).forget(_tasks(options))


def requeue(stale: TaskQuerySet, may_act: Callable[[], bool] = lambda: True) -> Iterator[int]:
    """Requeue CLAIMED tasks batch by batch; yield how many of each were requeued."""
    return in_batches(stale, _requeue, may_act=may_act)


def _deliver_ends(ended: WorkflowQuerySet) -> int:
    """Wake the tasks; return how many workflows no task waits for any more.

    A workflow is looked at again for a minute, because a body that began to wait before its end may not be stored yet.
    """
    names = {f"{WORKFLOW_WAIT}{key}": key for key in ended.locked(skip=True).values_list("pk", flat=True)}
    waiting = Task.objects.using(ended.db).filter(waits_for__in=names)
    waiting.wake()
    free = set(names.values()) - {names[str(name)] for name in waiting.values_list("waits_for", flat=True)}
    ended_at = Coalesce("completed_at", "cancelled_at", "sent_at")
    return ended.filter(pk__in=free).alias(ended_at=ended_at).filter(ended_at__lt=NowPlus(-60)).update(is_awaited=False)


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


#: Duties that treat a worker without heartbeats as dead.
STALENESS_DUTIES: Final = {
    "requeued stale claims": requeue_stale_claimed,
    "recovered stale runs": recover_stale_running,
}

#: Duties in the order of a pass. Without work, each costs one statement and no transaction.
DUTIES: Final[dict[str, Duty]] = {
    **STALENESS_DUTIES,
    # Workflows before tasks: a waiting node has its workflow's deadline; expiring it first would fail the workflow.
    "expired overdue workflows": expire_workflows,
    "expired paused workflows": expire_paused_workflows,
    "expired overdue tasks": expire_overdue,
    "released blocked tasks": release_blocked_tasks,
    "repaired workflows": repair_workflows,
    "delivered events": deliver_events,
    "delivered ends of workflows": deliver_ends,
    # Before tasks are deleted: attempts are deleted with their task.
    "rolled up attempts": roll_up,
    "deleted ended workflows": prune_workflows,
    "deleted ended tasks": prune_tasks,
    "deleted old heartbeats": prune_heartbeats,
    "deleted old roll-ups": prune_rollups,
    "deleted old error groups": prune_error_groups,
    "forgot dead workers": prune_workers,
    "forgot limits": prune_limits,
}


#: Takes whether rows were processed since the last call, and returns whether the caller still holds the lease.
IsMine = Callable[[bool], bool]


def run_pass(
    options: Options,
    is_mine: IsMine = lambda _: True,
    may_detect_stale: Callable[[], bool] = lambda: True,
    *,
    names: Collection[str] = DUTIES.keys(),
) -> list[DutyReport]:
    """Run every duty, or those of these ``names``, once while ``is_mine`` returns True; return a report for each.

    ``may_detect_stale`` is called once stale tasks were found. If it returns False, their workers may have been unable
    to send heartbeats, and the tasks wait for a later pass.

    A duty that fails is logged; the others still run. Raises MissingPrivilege if the database denies a statement,
    because every later pass would fail too.
    """
    duties = DUTIES | {
        name: partial(duty, may_detect_stale=may_detect_stale) for name, duty in STALENESS_DUTIES.items()
    }
    reports: list[DutyReport] = []
    for name, duty in duties.items():
        if name not in names:
            continue
        if not is_mine(False):
            break
        reports.append(_run(name, duty, options, is_mine))
    return reports


def _run(name: str, duty: Duty, options: Options, is_mine: IsMine) -> DutyReport:
    total = batches = 0
    try:
        for count in islice(duty(options), BATCHES_PER_PASS):
            total, batches = total + count, batches + 1
            if count and not is_mine(True):
                break
    except Exception as error:
        raise_if_forbidden(options.database, error)
        logger.exception("reaper duty failed duty=%r: the other duties still run", name)
        return DutyReport(name, total, repr(error))
    if total:
        logger.info("reaper duty=%r count=%d", name, total)
    return DutyReport(name, total, has_more=total > 0 and batches == BATCHES_PER_PASS)


def _tasks(options: Options) -> TaskQuerySet:
    return Task.objects.using(options.database)
