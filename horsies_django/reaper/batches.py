"""Doing something with many rows: a bounded batch at a time, and one row at a time where a batch is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from django.db import InterfaceError, OperationalError, transaction

from ..models.transitions import BATCH, TaskQuerySet

logger = logging.getLogger("horsies_django.reaper")


class Batch(NamedTuple):
    """How many rows were found for a batch, and with how many of them something was done."""

    found: int
    done: int

    @property
    def may_be_more(self) -> bool:
        """Whether another batch might find something to do."""
        return self.found >= BATCH and self.done > 0


def one_batch(rows: TaskQuerySet, act: Callable[[TaskQuerySet], int]) -> Batch:
    """Do ``act`` with a batch of ``rows`` in one transaction. Where there are none, it costs one statement.

    A row that spoils the batch is found by doing each alone; it is logged and left, and the others go on.
    """
    keys = list(rows.values_list("pk", flat=True)[:BATCH])
    if not keys:
        return Batch(0, 0)
    try:
        with transaction.atomic(using=rows.db):
            return Batch(len(keys), act(rows.filter(pk__in=keys)))
    except (OperationalError, InterfaceError):
        raise  # the database is not to be had: that is no row's fault
    except Exception:
        logger.exception("%d rows can't be done together: doing them one by one", len(keys))
    done = 0
    for key in keys:
        try:
            with transaction.atomic(using=rows.db):
                done += act(rows.filter(pk=key))
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            logger.exception("task id=%s can't be done: left as it is", key)
    return Batch(len(keys), done)


def all_batches(one: Callable[[], Batch]) -> int:
    """Do batch after batch until none is left; return with how many rows something was done."""
    total = 0
    while True:
        batch = one()
        total += batch.done
        if not batch.may_be_more:
            return total
