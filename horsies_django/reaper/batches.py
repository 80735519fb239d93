"""Doing something with many rows: a bounded batch at a time, and one row at a time where a batch is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from django.db import InterfaceError, OperationalError, connections, transaction

from ..models.transitions import BATCH, TaskQuerySet

logger = logging.getLogger("horsies_django.reaper")


class Batch(NamedTuple):
    """How many rows were found for a batch, with how many something was done, and how many can't be done."""

    found: int
    done: int
    spoiled: int = 0

    @property
    def may_be_more(self) -> bool:
        """Whether another batch might find something else to do: rows that somebody has locked it would find again."""
        return self.found >= BATCH and self.done + self.spoiled > 0


#: Rows that could not be done, in one pass of one duty: they are not tried again in it, nor in the way of others.
Refused = set[UUID]


def one_batch(rows: TaskQuerySet, act: Callable[[TaskQuerySet], int], refused: Refused) -> Batch:
    """Do ``act`` with a batch of ``rows`` in one transaction. Where there are none, it costs one statement.

    A row that spoils the batch is found by doing each alone; it is logged and left, and the others go on.
    """
    rest = rows.exclude(pk__in=refused) if refused else rows
    keys = list(rest.values_list("pk", flat=True)[:BATCH])
    if not keys:
        return Batch(0, 0)
    try:
        return Batch(len(keys), _together(rows, keys, act))
    except Exception as error:
        _raise_if_away(rows.db, error)
        logger.exception("%d rows can't be done together: doing them one by one", len(keys))
    done = spoiled = 0
    for key in keys:
        try:
            done += _together(rows, [key], act)
        except Exception as error:
            _raise_if_away(rows.db, error)
            logger.exception("task id=%s can't be done: left as it is", key)
            refused.add(key)
            spoiled += 1
    return Batch(len(keys), done, spoiled)


def _together(rows: TaskQuerySet, keys: list[UUID], act: Callable[[TaskQuerySet], int]) -> int:
    with transaction.atomic(using=rows.db):
        return act(rows.filter(pk__in=keys))


def _raise_if_away(database: str, error: Exception) -> None:
    """Raise what is no row's fault: the database is not to be had, or somebody else's transaction is in the way."""
    if isinstance(error, OperationalError | InterfaceError):
        is_busy = str(getattr(error.__cause__, "sqlite_errorname", "")).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
        if is_busy or not connections[database].is_usable():
            raise error


def all_batches(one: Callable[[Refused], Batch]) -> int:
    """Do batch after batch until none is left; return with how many rows something was done."""
    total, refused = 0, Refused()
    while True:
        batch = one(refused)
        total += batch.done
        if not batch.may_be_more:
            return total
