"""The duties of a reaper, and the pass that runs them in order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from django.db import transaction

from ..conf import Options
from ..models import Task
from ..models.transitions import BATCH, TaskQuerySet
from ..waking import ANY_QUEUE, wake_after_commit
from .crashed import recover_crashed

logger = logging.getLogger("horsies_django.reaper")

#: Batches of one duty in one pass; what is left waits for the next.
BATCHES_PER_PASS: Final = 40


@dataclass(frozen=True, slots=True)
class DutyReport:
    """What one duty did in one pass; ``error`` if it could not go on."""

    duty: str
    count: int
    error: str = ""

    def __str__(self) -> str:
        return f"{self.duty}: {self.count}" + (f" (stopped by {self.error})" if self.error else "")


def requeue_stale_claimed(options: Options) -> int:
    """CLAIMED tasks whose claimer fell silent go back to PENDING (S0-25)."""
    recovery = options.recovery
    if not recovery.auto_requeue_stale_claimed:
        return 0
    threshold = recovery.claimed_stale_threshold_ms / 1_000
    if not _tasks(options).stale_claimed(threshold).exists():
        return 0
    with transaction.atomic(using=options.database):
        wake_after_commit(options.database, ANY_QUEUE)
        return _tasks(options).requeue_stale_claimed(threshold)


def recover_stale_running(options: Options) -> int:
    """RUNNING tasks whose runner fell silent are retried or FAILED (S3-09, S3-10)."""
    recovery = options.recovery
    if not recovery.auto_fail_stale_running:
        return 0
    stale = _tasks(options).stale_running(recovery.running_stale_threshold_ms / 1_000)
    return recover_crashed(stale) if stale.exists() else 0


def expire_overdue(options: Options) -> int:
    """PENDING tasks whose ``good_until`` has passed become EXPIRED (S0-36)."""
    if not _tasks(options).overdue().exists():
        return 0
    with transaction.atomic(using=options.database):
        return _tasks(options).expire_overdue()


#: In the order of a pass. Each does one batch and returns how many rows that were; one that finds nothing to do costs
#: one statement and no transaction.
DUTIES: Final[dict[str, Callable[[Options], int]]] = {
    "requeued stale claims": requeue_stale_claimed,
    "recovered stale runs": recover_stale_running,
    "expired overdue tasks": expire_overdue,
}


def run_pass(options: Options) -> list[DutyReport]:
    """Run every duty once and return what each did. One that fails does not keep the others from theirs."""
    return [_run(name, duty, options) for name, duty in DUTIES.items()]


def _run(name: str, duty: Callable[[Options], int], options: Options) -> DutyReport:
    total = 0
    try:
        for _ in range(BATCHES_PER_PASS):
            count = duty(options)
            total += count
            if count < BATCH:
                break
    except Exception as error:
        logger.exception("duty %r failed; the others go on", name)
        return DutyReport(name, total, repr(error))
    if total:
        logger.info("reaper %s: %d", name, total)
    return DutyReport(name, total)


def _tasks(options: Options) -> TaskQuerySet:
    return Task.objects.using(options.database)
