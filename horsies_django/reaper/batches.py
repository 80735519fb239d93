"""Apply a function to many rows in bounded batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from django.db import transaction
from django.db.models import QuerySet

from ..db.errors import concerns_all_rows, row_by_row
from ..models.transitions import BATCH, TaskQuerySet

logger = logging.getLogger("horsies_django.reaper")


#: Rows that fail until the rest is left to the next pass.
MAX_LEFT: Final = 4 * BATCH

#: Rows of any table.
Rows = TypeVar("Rows", bound=QuerySet[Any])


def in_batches(
    rows: Rows, act: Callable[[Rows], int], size: int = BATCH, may_act: Callable[[], bool] = lambda: True
) -> Iterator[int]:
    """Apply ``act`` to ``rows`` in batches, each in a transaction; yield how many rows it processed of each.

    If there are no rows, this costs one statement. ``may_act`` is called once a batch has rows; if it returns False,
    they stay unchanged. A row that fails is set aside: later batches leave it out. Ends when no row is left, or when
    all rows of a batch are locked.
    """
    left = list[Any]()

    def act_on(keys: Sequence[Any]) -> int:
        with transaction.atomic(using=rows.db):
            return act(rows.filter(pk__in=keys))

    def set_aside(key: Any, error: Exception) -> int:
        if isinstance(rows, TaskQuerySet) and (count := rows.set_aside(key, error)):
            return count
        if not isinstance(rows, TaskQuerySet):
            logger.error("row can't be processed table=%s id=%s", rows.model._meta.db_table, key, exc_info=error)
        left.append(key)
        return 0

    while len(left) < MAX_LEFT:
        failed = len(left)
        keys = list((rows.exclude(pk__in=left) if left else rows).values_list("pk", flat=True)[:size])
        if not keys or not may_act():
            return
        done = sum(row_by_row(keys, act_on, set_aside, concerns_all_rows))
        yield done
        if len(keys) < size or not (done or len(left) > failed):
            return


def delete_all(rows: QuerySet[Any]) -> Iterator[int]:
    """Delete rows in batches; yield how many of each."""
    return in_batches(rows, lambda batch: batch.delete()[0])
