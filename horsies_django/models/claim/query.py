"""The claim: which tasks are next up, in which order, and which of them a worker may take.

:class:`ClaimQuerySet` is the only description of that. ``complete_and_claim`` compiles it: on PostgreSQL into one
statement (see ``tests/worker/golden/claim_postgresql.sql``).
"""

from __future__ import annotations

from typing import Final, Self, TypeVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Greatest

from ...core.status import TaskStatus
from ...db.claim_expressions import CURSOR_PRIORITY, LATERAL_QUEUE, AfterCursor, IsQueueCandidate, UnpausedQueue
from ...db.expressions import BoundParam
from ...db.now import Now
from ..queue import Queue

#: The model of a task, which a queryset does not know.
RowT = TypeVar("RowT", bound=models.Model)

#: The order of claims: the higher priority first, then the earlier time, then the lower id. An index has it for each
#: queue.
ORDER: Final = ("-priority", "enqueued_at", "pk")

#: The same order, in a form that no index has: it makes the planner sort, which is faster for a few candidates.
SORTED_ORDER: Final = (F("priority") * -1, "enqueued_at", "pk")

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

    def claimable(self, *, is_async: bool) -> Self:
        """Lock the next tasks of the queue that each run binds, if it is not paused: what a claim takes."""
        return self.next_up(is_async=is_async).filter(queue_name=UnpausedQueue(self._paused)).lock()

    def after_cursor(self) -> Self:
        """Those after the cursor: the position of the last task that this worker has claimed. PostgreSQL only."""
        return self.filter(AfterCursor(), priority=BoundParam(CURSOR_PRIORITY, models.SmallIntegerField()))

    def claimable_of_queues(self, firsts: Self, *, is_async: bool) -> Self:
        """Lock the next tasks of several queues, of each not more than its cap and none if it is paused.

        PostgreSQL only. ``firsts`` are the rows of which the candidates are chosen. They are not locked, so another
        worker may be quicker to lock some: there are more candidates than room.
        """
        next_up = firsts.next_up(is_async=is_async).filter(queue_name=LATERAL_QUEUE)
        return self.due().filter(IsQueueCandidate(next_up, self._paused)).order_by(*SORTED_ORDER).lock()

    @property
    def _paused(self) -> models.QuerySet[Queue]:
        return Queue.objects.using(self.db).filter(paused=True)


def not_past_deadline() -> Q:
    """Rows whose ``good_until`` has not passed."""
    return Q(good_until__isnull=True) | Q(good_until__gt=Now())
