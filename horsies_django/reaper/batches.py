"""Doing something with many rows: a bounded batch at a time, and one row at a time where a batch is refused."""

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
    """How many rows were found for a batch, with how many something was done, and how many can't be done."""

    found: int
    done: int
    failed: int = 0
    size: int = BATCH

    @property
    def may_be_more(self) -> bool:
        """Whether another batch might find something else to do: rows that somebody has locked it would find again."""
        return self.found >= self.size and self.done + self.failed > 0


#: Tasks or workflows.
Rows = TypeVar("Rows", bound=QuerySet[Any])

#: Rows that could not be done, in one pass of one duty: they are not tried again in it, nor in the way of others.
SkippedRows = set[UUID]


def run_batch(
    rows: Rows,
    act: Callable[[Rows], int],
    refused: SkippedRows,
    size: int = BATCH,
    may_act: Callable[[], bool] = lambda: True,
    give_up: Callable[[Rows, Exception], int] | None = None,
) -> BatchResult:
    """Do ``act`` with a batch of ``rows`` in one transaction. Where there are none, it costs one statement.

    ``may_act`` is asked once rows were found; if it says no, they are left as they are.

    A row that spoils the batch is found by doing each alone; it is logged and left, and the others go on. With
    ``give_up`` that is done with it where the row itself may be to blame.
    """
    rest = rows.exclude(pk__in=refused) if refused else rows
    keys = list(rest.values_list("pk", flat=True)[:size])
    if not keys or not may_act():
        return BatchResult(len(keys), 0, size=size)
    try:
        return BatchResult(len(keys), _act_on_all(rows, keys, act), size=size)
    except Exception as error:
        _raise_if_outage(rows.db, error)
        logger.exception("%d rows can't be done together: doing them one by one", len(keys))
    done = spoiled = 0
    for key in keys:
        try:
            done += _act_on_all(rows, [key], act)
        except Exception as error:
            _raise_if_outage(rows.db, error)
            if give_up is not None and is_out_of_range(error) and give_up(rows.filter(pk=key), error):
                logger.exception("%s id=%s can't be done: it is FAILED", rows.model._meta.verbose_name, key)
                done += 1
                continue
            logger.exception("%s id=%s can't be done: left as it is", rows.model._meta.verbose_name, key)
            refused.add(key)
            spoiled += 1
    return BatchResult(len(keys), done, spoiled, size)


def _act_on_all(rows: Rows, keys: list[UUID], act: Callable[[Rows], int]) -> int:
    with transaction.atomic(using=rows.db):
        return act(rows.filter(pk__in=keys))


def _raise_if_outage(database: str, error: Exception) -> None:
    """Raise what is no row's fault: the database is away, another transaction is in the way, a privilege is missing."""
    if sqlstate(error) in (READ_ONLY, LOCK_NOT_AVAILABLE, INSUFFICIENT_PRIVILEGE):
        raise error
    if isinstance(error, OperationalError | InterfaceError):
        is_busy = str(getattr(error.__cause__, "sqlite_errorname", "")).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
        if is_busy or not connections[database].is_usable():
            raise error


def run_all_batches(one: Callable[[SkippedRows], BatchResult]) -> int:
    """Do batch after batch until none is left; return with how many rows something was done."""
    total, refused = 0, SkippedRows()
    while True:
        batch = one(refused)
        total += batch.done
        if not batch.may_be_more:
            return total


def fail_unreadable(rows: TaskQuerySet, error: Exception) -> int:
    """End tasks that nothing else can be done with."""
    return rows.fail_unreadable(f"The row can't be read: {error}")
