"""Apply a function to many rows in bounded batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from ..db.errors import concerns_all_rows, row_by_row
from ..models.transitions import BATCH, TaskQuerySet

logger = logging.getLogger("horsies_django.reaper")


#: Rows that fail of one batch after the other until the duty leaves the rest to its next pass.
MAX_LEFT: Final = 4 * BATCH


class BatchResult(NamedTuple):
    """The result of one batch: how many rows it selected and processed."""

    rows: int
    done: int
    size: int = BATCH

    @property
    def may_be_more(self) -> bool:
        """Whether another batch may make progress. Rows that are locked or that fail do not count."""
        return self.rows >= self.size and self.done > 0


#: Tasks or workflows.
Rows = TypeVar("Rows", bound=QuerySet[Any])


def run_batch(
    rows: Rows, act: Callable[[Rows], int], size: int = BATCH, may_act: Callable[[], bool] = lambda: True
) -> BatchResult:
    """Apply ``act`` to a batch of ``rows`` in one transaction. If there are no rows, this costs one statement.

    ``may_act`` is called once rows were found; if it returns False, the rows stay unchanged. A row that fails is set
    aside. If no row of the batch can be processed, the next batch is tried.
    """
    left = list[UUID]()

    def act_on(keys: Sequence[UUID]) -> int:
        with transaction.atomic(using=rows.db):
            return act(rows.filter(pk__in=keys))

    def set_aside(key: UUID, error: Exception) -> int:
        if isinstance(rows, TaskQuerySet) and (count := rows.set_aside(key, error)):
            return count
        if not isinstance(rows, TaskQuerySet):
            logger.error("workflow can't be processed id=%s: skipped", key, exc_info=error)
        left.append(key)
        return 0

    while True:
        keys = list((rows.exclude(pk__in=left) if left else rows).values_list("pk", flat=True)[:size])
        if not keys or not may_act():
            return BatchResult(len(keys), 0, size)
        done = sum(row_by_row(keys, act_on, set_aside, concerns_all_rows))
        if done or not left or len(left) >= MAX_LEFT:
            return BatchResult(len(keys), done, size)


def run_all_batches(run_one: Callable[[], BatchResult]) -> int:
    """Run batches until none makes progress; return how many rows were processed."""
    total = 0
    while True:
        batch = run_one()
        total += batch.done
        if not batch.may_be_more:
            return total
