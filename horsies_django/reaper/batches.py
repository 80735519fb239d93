"""Apply a function to many rows in bounded batches, and row by row when a batch fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.models import QuerySet

from ..db.errors import INSUFFICIENT_PRIVILEGE, LOCK_NOT_AVAILABLE, READ_ONLY, is_out_of_range, sqlstate
from ..models.transitions import BATCH, TaskQuerySet

logger = logging.getLogger("horsies_django.reaper")


class BatchResult(NamedTuple):
    """The result of one batch: how many rows it found, processed and failed to process."""

    found: int
    done: int
    failed: int = 0
    size: int = BATCH

    @property
    def may_be_more(self) -> bool:
        """Whether another batch may make progress. Rows that another transaction has locked do not count."""
        return self.found >= self.size and self.done + self.failed > 0


#: Tasks or workflows.
Rows = TypeVar("Rows", bound=QuerySet[Any])

#: Primary keys of rows that failed in this pass of a duty. Later batches of the pass exclude them.
SkippedRows = set[UUID]


def run_batch(
    rows: Rows,
    act: Callable[[Rows], int],
    skipped: SkippedRows,
    size: int = BATCH,
    may_act: Callable[[], bool] = lambda: True,
    give_up: Callable[[Rows, Exception], int] | None = None,
) -> BatchResult:
    """Apply ``act`` to a batch of ``rows`` in one transaction. If there are no rows, this costs one statement.

    ``may_act`` is called once rows were found; if it returns False, the rows stay unchanged.

    If the batch fails, each row is tried in a transaction of its own. A row that fails is logged and added to
    ``skipped``. ``give_up``, if given, is called first when a value of the row itself may cause the error.
    """
    rest = rows.exclude(pk__in=skipped) if skipped else rows
    keys = list(rest.values_list("pk", flat=True)[:size])
    if not keys or not may_act():
        return BatchResult(len(keys), 0, size=size)
    try:
        return BatchResult(len(keys), _act_on_all(rows, keys, act), size=size)
    except Exception as error:
        _raise_if_outage(rows.db, error)
        logger.exception("batch failed rows=%d: retried one by one", len(keys))
    done, failed = 0, SkippedRows()
    for key in keys:
        try:
            done += _act_on_all(rows, [key], act)
        except Exception as error:
            _raise_if_outage(rows.db, error)
            if give_up is not None and is_out_of_range(error) and give_up(rows.filter(pk=key), error):
                logger.exception("%s can't be processed id=%s: marked FAILED", rows.model._meta.verbose_name, key)
                done += 1
                continue
            logger.exception("%s can't be processed id=%s: skipped", rows.model._meta.verbose_name, key)
            failed.add(key)
    skipped.update(failed)
    return BatchResult(len(keys), done, len(failed), size)


def _act_on_all(rows: Rows, keys: list[UUID], act: Callable[[Rows], int]) -> int:
    with transaction.atomic(using=rows.db):
        return act(rows.filter(pk__in=keys))


def _raise_if_outage(database: str, error: Exception) -> None:
    """Raise ``error`` if no row causes it: the database is down, a lock is taken, or a privilege is missing."""
    if sqlstate(error) in (READ_ONLY, LOCK_NOT_AVAILABLE, INSUFFICIENT_PRIVILEGE):
        raise error
    if isinstance(error, OperationalError | InterfaceError):
        is_busy = str(getattr(error.__cause__, "sqlite_errorname", "")).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
        if is_busy or not connections[database].is_usable():
            raise error


def run_all_batches(run_one: Callable[[SkippedRows], BatchResult]) -> int:
    """Run batches until none makes progress; return how many rows were processed."""
    total, skipped = 0, SkippedRows()
    while True:
        batch = run_one(skipped)
        total += batch.done
        if not batch.may_be_more:
            return total


def fail_unreadable(rows: TaskQuerySet, error: Exception) -> int:
    """Mark tasks FAILED whose rows can't be read or written; return how many."""
    return rows.fail_unreadable(f"The row can't be read: {error}")
