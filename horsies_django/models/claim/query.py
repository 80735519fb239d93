"""The claim: which tasks are next up, in which order, and which of them a worker may take.

:class:`ClaimQuerySet` is the only description of that. On PostgreSQL, ``complete_and_claim`` compiles it into one
statement (see ``tests/worker/golden/claim_postgresql.sql``); other databases run it as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Greatest

from ...core.status import TaskStatus
from ...db.claim_expressions import CURSOR_PRIORITY, AfterCursor, IsQueueCandidate, LateralQueue, UnpausedQueue
from ...db.expressions import BoundParam
from ...db.now import Now
from ..queue import Queue

#: The model of a task, which a queryset does not know.
RowT = TypeVar("RowT", bound=models.Model)

#: The columns that rank tasks: the higher priority first, then the earlier time, then the lower id.
RANK: Final = ("priority", "enqueued_at", "pk")

#: The order of claims. An index has it for each queue.
ORDER: Final = (f"-{RANK[0]}", *RANK[1:])

#: The same order, in a form that no index has: it makes the planner sort, which is faster for a few candidates.
SORTED_ORDER: Final = (F(RANK[0]) * -1, *RANK[1:])

#: When a task became due: its time had come, and no limit or paused workflow held it back. Latencies and waits count
#: from then. ``Task.due_at`` is the same of a row.
DUE_AT: Final = Greatest("enqueued_at", Coalesce("released_at", "enqueued_at"))


class ClaimQuerySet(models.QuerySet[RowT]):
    """Tasks that can be claimed."""

    def pending(self) -> Self:
        """Pending tasks, due or not."""
        return self.filter(status=TaskStatus.PENDING)

    def due(self) -> Self:
        """Pending tasks whose time has come and whose deadline has not passed."""
        return self.pending().filter(not_past_deadline(), enqueued_at__lte=Now())

    def waiting(self, *, is_async: bool) -> Self:
        """Pending tasks of one kind that are in the index of claims: not scheduled for later, and not blocked."""
        # As a list: a bare NOT is no equality to SQLite, and then the index gives it no order.
        return self.pending().filter(deferred=False, is_async__in=[is_async])

    def next_up(self, *, is_async: bool = False) -> Self:
        """Tasks that can be claimed, in the order of claims.

        The index has them in this order for one queue; those of several queues have to be sorted.
        """
        return self.waiting(is_async=is_async).due().order_by(*ORDER)

    def lock(self, *, skip: bool = True) -> Self:
        """Lock the rows and skip locked ones, without blocking inserts that refer to them.

        On SQLite Django leaves out the clause: there one transaction writes at a time.
        """
        return self.select_for_update(skip_locked=skip, no_key=True)

    def in_open_queue(self, queue: str | None, *, is_async: bool = False) -> Self:
        """The next tasks of one queue; none if it is paused. Without a name, each run of the statement binds it."""
        return self.next_up(is_async=is_async).filter(queue_name=UnpausedQueue(queue, self._paused))

    def claimable(self, queue: str | None, *, is_async: bool = False) -> Self:
        """The next tasks of one queue that no other worker has locked, locked: what a claim takes."""
        return self.in_open_queue(queue, is_async=is_async).lock()

    def claimable_after_cursor(self, *, is_async: bool) -> Self:
        """The same after the cursor: the position of the last task that this worker has claimed."""
        priority = BoundParam(CURSOR_PRIORITY, models.SmallIntegerField())
        return self.in_open_queue(None, is_async=is_async).filter(AfterCursor(), priority=priority).lock()

    def claimable_among(self, candidates: Q | models.expressions.BaseExpression) -> Self:
        """The next of some candidates that no other worker has locked, locked."""
        return self.due().filter(candidates).order_by(*SORTED_ORDER).lock()

    def claimable_of_queues(self, firsts: Self, *, is_async: bool, is_capped: bool = False) -> Self:
        """The next tasks of several open queues that no other worker has locked; with caps, a few of each at most.

        PostgreSQL only. ``firsts`` are the rows of which the candidates are chosen. They are not locked, so another
        worker may be quicker to lock some: there are more candidates than room.
        """
        next_up = firsts.next_up(is_async=is_async).filter(queue_name=LateralQueue())
        return self.claimable_among(IsQueueCandidate(next_up, self._paused, is_capped=is_capped))

    @property
    def _paused(self) -> models.QuerySet[Queue]:
        return Queue.objects.using(self.db).filter(paused=True)


def first_of(*ranked: Iterable[tuple[Any, ...]]) -> list[UUID]:
    """Return the ids of tasks of several queues in the order of claims; each is given as its :data:`RANK`."""
    return [key for *_, key in sorted(chain(*ranked), key=lambda rank: (-rank[0], *rank[1:]))]


def not_past_deadline() -> Q:
    """Rows whose ``good_until`` has not passed."""
    return Q(good_until__isnull=True) | Q(good_until__gt=Now())
