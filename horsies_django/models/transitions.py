"""Every change of a task's state, each one guarded update; the states it goes from and to stand in the lifecycle.

A transition that batches takes values, not instances: on the way of each task, model instances would cost more than the
database. The guard of everything a worker does is the *claim*: a number on the row that grows each time the row is
claimed, so that whatever comes from an older claim, even of the same worker, matches no row and changes nothing. The
worker's id is compared as well: after a failover that has lost commits, two workers may hold the same number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.db import IntegrityError, OperationalError, connections, models, transaction
from django.db.models import Case, F, Q, TextField, Value, When
from django.db.models.functions import Cast, Greatest, Now

from ..core import lifecycle
from ..core.bounds import RETENTION, date_if_within, in_range
from ..core.results import OperationalCode, OutcomeCode, TaskError
from ..core.signals import has_receivers, task_cancelled, task_expired
from ..core.status import AttemptOutcome, TaskStatus
from ..core.transition import Transition
from ..core.unique import UniqueUntil
from ..db.expressions import NowPlus, Param, SecondsUntil, ValueByPk, integers, texts
from ..db.notifications import ANY_QUEUE, notify_revoked_after_commit, wake_after_commit
from .attempt import AttemptError, TaskAttempt, TaskAttemptQuerySet
from .claim.query import RANK, first_of, not_past_deadline
from .claims import ClaimedTask, ClaimLost, ClaimRef, Completion, WorkerInfo, claims_of, error_result
from .operator_actions import OperatorActions
from .release_blocked import IS_LIMITED, release_after_commit
from .retention import kept_until
from .subscribers import subscribers
from .unreadable import IS_READABLE, error_results, values_in_range

if TYPE_CHECKING:
    from .task import Task  # noqa: F401  # the base class below names it

#: Rows that one statement of a reaper's duty changes at most.
BATCH: Final = 500

#: What PostgreSQL says to one of two that wait for each other, and how often that one tries again.
DEADLOCK: Final = "40P01"
TRIES: Final = 3

_CLAIM_CLEARED: Final[dict[str, Any]] = {"claimed_at": None, "claimed_by_worker_id": None, "started_at": None}


def _text(column: str) -> Cast:
    """The stored JSON as it stands: a damaged value must not stop the claim of its neighbours."""
    return Cast(column, TextField())


CLAIMED_COLUMNS: Final[tuple[Any, ...]] = (
    "pk",
    "task_name",
    "queue_name",
    "backend",
    "priority",
    _text("args"),
    _text("kwargs"),
    "typed_payload",
    F("claim") + 1,
    F("attempt") + 1,
    "retry_count",
    "max_retries",
    _text("retry_policy"),
    "is_async",
    _text("metadata"),
    date_if_within("enqueued_at"),
    "timeout",
    Case(When(in_range((), {"retention": RETENTION}), then=F("retention")), output_field=models.DurationField()),
    "workflow_id",
    "has_inputs",
    "limit_key",
    IS_READABLE,
    SecondsUntil("good_until"),
)

#: What the way back from a body writes: a key that is held until the start is held no more, or the update might fail.
_KEY_RELEASED: Final[dict[str, Any]] = {
    "unique_until": Case(
        When(unique_until=UniqueUntil.STARTED.value, then=Value(UniqueUntil.RELEASED.value)), default=F("unique_until")
    )
}


#: What the start of a body writes.
START_COLUMNS: Final[dict[str, Any]] = {"started_at": Now(), "attempt": F("attempt") + 1}


def claim_columns(worker_id: str) -> dict[str, Any]:
    """What a claim writes."""
    return {"claimed_at": Now(), "claimed_by_worker_id": worker_id, "claim": F("claim") + 1}


def completion_columns(results: Mapping[UUID, str] | Param, database: str) -> dict[str, Any]:
    """What the success of a body writes."""
    return {
        "result": ValueByPk(results, models.JSONField()),
        "error_code": None,
        "completed_at": Now(),
        "kept_until": kept_until(TaskStatus.COMPLETED, database),
    }


class TaskQuerySet(OperatorActions["Task"]):
    """The transitions."""

    # From PENDING to a body that runs.

    def make_due_claimable(self, limit: int = BATCH) -> int:
        """Let due tasks that were sent for later, or that wait for a retry, into the index of claims."""
        due = self.deferred().filter(enqueued_at__lte=Now()).order_by("enqueued_at")
        found = dict(due.lock().values_list("pk", "limit_key")[:limit])
        release_after_commit(self.db, found.values())
        rows = self.filter(pk__in=found, status=TaskStatus.PENDING)
        return rows.update(deferred=IS_LIMITED, blocked=IS_LIMITED) if found else 0

    def claim(
        self,
        worker_id: str,
        *,
        start: int,
        prefetch: int = 0,
        is_async: bool = False,
        queues: Sequence[str] | None = None,
        most: Mapping[str, int] | None = None,
    ) -> list[ClaimedTask]:
        """PENDING → RUNNING for the first ``start`` due tasks, PENDING → CLAIMED for ``prefetch`` more.

        In the order of claims. A task whose body starts as soon as the transaction
        commits needs no second update on its way. Without ``queues``, of any. ``most`` is how many of a queue at most.
        Raises :class:`ClaimLost`.
        """
        count, most = start + prefetch, most or {}
        if queues is None:
            rows = self.next_up(is_async=is_async).lock()
        elif len(queues) == 1:
            rows, count = self.claimable(queues[0], is_async=is_async), min(count, most.get(queues[0], count))
        else:
            rooms = {queue: min(count, most.get(queue, count)) for queue in queues}
            firsts = (self.claimable(queue, is_async=is_async).values_list(*RANK)[: rooms[queue]] for queue in queues)
            rows = self.claimable_among(Q(pk__in=first_of(*firsts)[:count]))
        asked_at = time.monotonic()
        claims = claims_of(rows.values_list(*CLAIMED_COLUMNS)[:count], asked_at)
        for change, batch, values in (
            (lifecycle.CLAIM_AND_START, claims[:start], claim_columns(worker_id) | START_COLUMNS),
            (lifecycle.CLAIM, claims[start:], claim_columns(worker_id)),
        ):
            mine = self.all_rows().filter(pk__in=[claim.task_id for claim in batch])
            if batch and mine._apply(change, **values) != len(batch):
                raise ClaimLost
        return claims

    def start(self, claims: Sequence[ClaimRef], worker_id: str) -> set[UUID]:
        """CLAIMED → RUNNING, and return the ids of those that may start.

        One whose ``good_until`` has passed becomes EXPIRED instead, with no attempt and its claim kept.
        """
        mine = self.under_claims(claims, TaskStatus.CLAIMED, worker_id)
        if mine.filter(not_past_deadline())._apply(lifecycle.START, **START_COLUMNS) == len(claims):
            return {claim.task_id for claim in claims}
        mine._expire(lifecycle.EXPIRE_CLAIMED)
        return set(self.under_claims(claims, TaskStatus.RUNNING, worker_id).values_list("pk", flat=True))

    def release(self, claims: Sequence[ClaimRef], worker_id: str) -> int:
        """CLAIMED → PENDING by the worker itself, no attempt burnt."""
        return self.under_claims(claims, TaskStatus.CLAIMED, worker_id)._apply(lifecycle.RELEASE, **_CLAIM_CLEARED)

    def revert_start(self, claims: Sequence[ClaimRef], worker_id: str) -> int:
        """RUNNING → PENDING by the worker itself, for bodies that never began: no attempt burnt."""
        mine = self.under_claims(claims, TaskStatus.RUNNING, worker_id)
        return mine._apply(lifecycle.UNSTART, attempt=Greatest(F("attempt") - 1, 0), **_CLAIM_CLEARED, **_KEY_RELEASED)

    # While a body runs.

    def store_progress(self, notes: Mapping[ClaimedTask, str], worker_id: str) -> set[UUID]:
        """Store what bodies say of their progress, as JSON texts, and return of which tasks.

        A row that its own body has locked, by saving its state in a transaction, is passed over: the worker must not
        wait for a body.
        """
        progress = ValueByPk({claim.task_id: note for claim, note in notes.items()}, models.JSONField())
        with transaction.atomic(using=self.db):
            mine = self.under_claims(notes.keys(), TaskStatus.RUNNING, worker_id)
            free = set(mine.lock().values_list("pk", flat=True))
            self.all_rows().filter(pk__in=free).update(progress=progress)
        return free

    # The end of a run.

    def complete(self, ends: Sequence[Completion], runner: WorkerInfo) -> int:
        """RUNNING → COMPLETED, with the result and the attempt; return how many there were."""
        results = {end.task_id: end.result for end in ends}
        mine = self.under_claims(ends, TaskStatus.RUNNING, runner.worker_id)
        count = mine._apply(lifecycle.COMPLETE, **completion_columns(results, self.db))
        self._attempts.record(
            self.under_claims(ends, TaskStatus.COMPLETED, runner.worker_id),
            AttemptOutcome.COMPLETED,
            hostname=runner.hostname,
            pid=runner.pid,
        )
        return count

    def fail(
        self, ends: Sequence[Completion], runner: WorkerInfo, outcome: AttemptOutcome = AttemptOutcome.FAILED
    ) -> None:
        """RUNNING → FAILED, with the error and the attempt."""
        errors = {end.task_id: end.error for end in ends if end.error}
        self.under_claims(ends, TaskStatus.RUNNING, runner.worker_id)._apply(
            lifecycle.FAIL,
            result=ValueByPk({end.task_id: end.result for end in ends}, models.JSONField()),
            error_code=_codes(errors),
            failed_at=Now(),
            kept_until=kept_until(TaskStatus.FAILED, self.db),
        )
        self._attempts.record(
            self.under_claims(ends, TaskStatus.FAILED, runner.worker_id),
            outcome,
            errors=errors,
            hostname=runner.hostname,
            pid=runner.pid,
        )

    def retry_later(
        self,
        ends: Sequence[Completion],
        runner: WorkerInfo,
        outcome: AttemptOutcome = AttemptOutcome.FAILED,
        *,
        is_charged: bool = True,
    ) -> None:
        """RUNNING → PENDING, due after ``again_in``; FAILED where that is past ``good_until``.

        It costs one of the task's retries if ``is_charged``.

        The rows are locked and judged in one statement, for the attempt is written while the row still has its start.
        """
        due = _due_again(ends)
        in_time = Case(When(Q(good_until__isnull=True) | Q(good_until__gt=due), Value(True)), default=Value(False))
        mine = self.under_claims(ends, TaskStatus.RUNNING, runner.worker_id)
        verdicts = dict(mine.lock(skip=False).values_list("pk", in_time))
        if again := [end for end in ends if verdicts.get(end.task_id)]:
            rows = self.under_claims(again, TaskStatus.RUNNING, runner.worker_id)
            errors = {end.task_id: end.error for end in again if end.error}
            self._attempts.record(
                rows,
                outcome,
                will_retry=True,
                errors=errors,
                hostname=runner.hostname,
                pid=runner.pid,
            )
            rows._apply(
                lifecycle.RETRY_LATER,
                error_code=_codes(errors),
                retry_count=F("retry_count") + int(is_charged),
                next_retry_at=due,
                enqueued_at=due,
                deferred=True,
                unknown_to=None,
                **_CLAIM_CLEARED,
                **_KEY_RELEASED,
            )
            wake_after_commit(self.db, ANY_QUEUE, later=True)  # this worker may be gone by then
        if too_late := [end for end in ends if verdicts.get(end.task_id) is False]:
            self.fail(too_late, runner, outcome)

    def snooze(self, ends: Sequence[Completion], worker_id: str) -> int:
        """RUNNING → PENDING, due after ``again_in``, as if this run had not been: no attempt burnt."""
        return self._reschedule(lifecycle.SNOOZE, ends, worker_id, unknown_to=None)

    def hand_back(self, ends: Sequence[Completion], worker_id: str) -> int:
        """RUNNING → PENDING, due after ``again_in``, for a worker that may know what this one does not: no attempt."""
        notes = ValueByPk({end.task_id: end.unknown_to or "null" for end in ends}, models.JSONField())
        return self._reschedule(lifecycle.HAND_BACK, ends, worker_id, unknown_to=notes)

    def _reschedule(
        self, transition: Transition[TaskStatus], ends: Sequence[Completion], worker_id: str, **values: Any
    ) -> int:
        count = self.under_claims(ends, TaskStatus.RUNNING, worker_id)._apply(
            transition,
            attempt=Greatest(F("attempt") - 1, 0),
            enqueued_at=_due_again(ends),
            next_retry_at=None,
            deferred=True,
            **values,
            **_CLAIM_CLEARED,
            **_KEY_RELEASED,
        )
        wake_after_commit(self.db, ANY_QUEUE, later=True)
        return count

    # What a reaper may do.

    def requeue(self) -> int:
        """CLAIMED → PENDING, for no claimer has beaten long enough."""
        return self._apply(lifecycle.REQUEUE, **_CLAIM_CLEARED)

    def fail_unreadable(self, why: str = "The row can't be read.") -> int:
        """PENDING, CLAIMED, RUNNING → FAILED for rows that nobody can read; return how many. No attempt is written.

        Each tells what is wrong with it, or else ``why``. Its columns are brought back into their ranges first, for a
        page is to show it, and the database to take it.
        """
        rows = self.filter(lifecycle.FAIL_UNREADABLE.is_possible)
        with transaction.atomic(using=self.db), subscribers.follow_nodes(rows), rows.releasing_limits():
            results = error_results(rows.order_by().lock(skip=False), why)
            found = self.all_rows().filter(pk__in=results)
            if not found.filter(lifecycle.FAIL_UNREADABLE.is_possible).update(**values_in_range(self.model)):
                return 0
            return found._apply(
                lifecycle.FAIL_UNREADABLE,
                result=ValueByPk(results, models.JSONField()),
                error_code=OperationalCode.WORKER_ROW_UNREADABLE.value,
                failed_at=Now(),
                kept_until=kept_until(TaskStatus.FAILED, self.db),
            )

    def expire(self) -> int:
        """PENDING → EXPIRED where ``good_until`` has passed, no attempt."""
        return self._expire(lifecycle.EXPIRE)

    # What the end, or the pause, of a workflow does.

    def expire_claimed(self) -> int:
        """CLAIMED → EXPIRED where ``good_until`` has passed: that wins over a paused or cancelled workflow."""
        return self._expire(lifecycle.EXPIRE_CLAIMED)

    def hold_for_workflow(self) -> int:
        """CLAIMED → PENDING for tasks of paused workflows, which no worker claims until :meth:`let_go`.

        A held task is blocked and has no limit key, so no gate lets it in; its place at its limit is free.
        """
        with self.releasing_limits():
            return self._apply(lifecycle.HOLD, deferred=True, blocked=True, limit_key=None, **_CLAIM_CLEARED)

    def release_held(self, limit_key: Any = None) -> int:
        """Let held tasks be claimed again, or wait at the gate of this limit key; return how many."""
        values = {"limit_key": limit_key, "deferred": limit_key is not None, "blocked": limit_key is not None}
        count = self.held_by_workflow().update(**values)
        if count:
            wake_after_commit(self.db, ANY_QUEUE)
        return count

    # What a person may do.

    def cancel(self, *, include_running: bool = False) -> int:
        """PENDING, CLAIMED and, when asked, RUNNING → CANCELLED; return how many. No attempt is written.

        A body that runs is told to stop, within a second or so; what it still gives back is dropped.
        """
        possible = lifecycle.CANCEL.is_possible
        if include_running:
            possible |= lifecycle.CANCEL_RUNNING.is_possible
        # In one statement: a task that begins between two of them would slip through.
        rows = self.filter(possible)
        with subscribers.follow_nodes(rows), rows.releasing_limits():
            count = self._retry_on_deadlock(lambda: rows._cancel(possible))
        if count and include_running:
            notify_revoked_after_commit(self.db)
        return count

    def cancel_for_workflow(self) -> int:
        """PENDING, CLAIMED → CANCELLED for tasks of a workflow that takes them back itself."""
        possible = lifecycle.CANCEL.is_possible
        rows = self.filter(possible)
        with rows.releasing_limits():
            return rows._cancel(possible)

    def _cancel(self, possible: Q) -> int:
        """Cancel these, which are in states where that is possible. Where somebody listens, batch by batch."""
        if not has_receivers(task_cancelled):
            return self.update(status=lifecycle.CANCEL.target, **self._cancel_columns())
        with transaction.atomic(using=self.db):
            # Who is to be told has to be known, so the rows are locked first.
            rows = self.all_rows().filter(possible)
            keys = list(rows.filter(pk__in=self.values("pk")).lock(skip=False).values_list("pk", flat=True))
            for start in range(0, len(keys), BATCH):
                batch = rows.filter(pk__in=keys[start : start + BATCH])
                batch.update(status=lifecycle.CANCEL.target, **self._cancel_columns())
            subscribers.send_ended(task_cancelled, self.db, keys)
        return len(keys)

    def _cancel_columns(self) -> dict[str, Any]:
        error = TaskError[None](error_code=OutcomeCode.TASK_CANCELLED, message="The task was cancelled.")
        return {
            "cancelled_at": Now(),
            "error_code": OutcomeCode.TASK_CANCELLED.value,
            "result": {"err": error.as_json()},
            "kept_until": kept_until(TaskStatus.CANCELLED, self.db),
        }

    def retry(self) -> int:
        """FAILED, CANCELLED, EXPIRED → PENDING with a fresh budget; return how many.

        Attempts are kept and their numbering goes on. A task whose unique key another live task holds stays as it is.
        """
        dead = self.filter(lifecycle.REVIVE.is_possible)
        limited = dead.limit_keys()
        count = subscribers.retry_nodes(dead.filter(workflow_id__isnull=False))
        dead = dead.filter(workflow_id__isnull=True)
        count += dead.retryable_without_key()._retry()
        keys = dead.retryable_with_key()
        for start in range(0, len(keys), BATCH):
            count += dead._retry_with_keys(keys[start : start + BATCH])
        if count:
            wake_after_commit(self.db, ANY_QUEUE)
            release_after_commit(self.db, limited)
        return count

    def _retry_with_keys(self, keys: Sequence[UUID]) -> int:
        """Revive tasks that hold unique keys then, but for those whose key another has taken meanwhile."""
        try:
            with transaction.atomic(using=self.db):
                return self.filter(pk__in=keys)._retry()
        except IntegrityError:
            if len(keys) == 1:
                return 0
        half = len(keys) // 2
        return self._retry_with_keys(keys[:half]) + self._retry_with_keys(keys[half:])

    def _retry(self) -> int:
        return self._apply(
            lifecycle.REVIVE,
            enqueued_at=Now(),
            deferred=IS_LIMITED,
            blocked=IS_LIMITED,
            retry_count=0,
            next_retry_at=None,
            good_until=Case(When(good_until__gt=Now(), then=F("good_until"))),
            result=None,
            error_code=None,
            failed_at=None,
            cancelled_at=None,
            expired_at=None,
            kept_until=None,
            progress=None,
            group_key=None,
            unknown_to=None,
            **_CLAIM_CLEARED,
            **_KEY_RELEASED,
        )

    # Helpers.

    def all_rows(self) -> TaskQuerySet:
        """Every row on the same database, whatever this queryset was narrowed to."""
        return self.model.objects.using(self.db)

    @contextmanager
    def releasing_limits(self) -> Iterator[None]:
        """Let others in, after the commit, for those of these rows that end and have a place, or get one before."""
        limited = self.limit_keys()
        yield
        release_after_commit(self.db, limited)

    def under_claims(self, claims: Collection[ClaimRef], status: TaskStatus, worker_id: str) -> TaskQuerySet:
        """The rows that are in ``status`` under exactly these claims of this worker ("" for none): the fence."""
        tokens = ValueByPk(integers({held.task_id: held.claim for held in claims}), models.IntegerField())
        keys = [held.task_id for held in claims]
        return self.all_rows().filter(pk__in=keys, status=status, claim=tokens, claimed_by_worker_id=worker_id or None)

    def _apply(self, transition: Transition[TaskStatus], **values: Any) -> int:
        """Make a change of state where it may be made, and return of how many rows."""
        return transition.apply(self, **values)

    def _retry_on_deadlock(self, update: Callable[[], int]) -> int:
        """Update again when a worker's tick had the same rows in another order and this side was told to give way.

        Inside a transaction there is nothing to be done anew but the whole of it, which is its owner's to decide.
        """
        for _ in range(TRIES):
            try:
                return update()
            except OperationalError as error:
                gave_way = getattr(error.__cause__, "sqlstate", "") == DEADLOCK
                if not gave_way or connections[self.db].in_atomic_block:
                    raise
        return update()

    @property
    def _attempts(self) -> TaskAttemptQuerySet:
        return TaskAttempt.objects.using(self.db)

    def _expire(self, transition: Transition[TaskStatus]) -> int:
        """To EXPIRED past ``good_until``, with who and what in the result, the claim kept."""
        late = list(self.filter(good_until__lte=Now()).values_list("pk", "claimed_by_worker_id", "limit_key"))
        release_after_commit(self.db, [limit_key for *_, limit_key in late])
        results = {
            key: error_result(
                OutcomeCode.TASK_EXPIRED,
                "good_until passed before the task began.",
                {"task_id": str(key), "worker_id": worker_id},
            )
            for key, worker_id, _ in late
        }
        if not results:
            return 0
        subscribers.send_ended(task_expired, self.db, list(results))
        return self.filter(pk__in=results)._apply(
            transition,
            expired_at=Now(),
            error_code=OutcomeCode.TASK_EXPIRED.value,
            result=ValueByPk(results, models.JSONField()),
            kept_until=kept_until(TaskStatus.EXPIRED, self.db),
        )


def _codes(errors: Mapping[UUID, AttemptError]) -> ValueByPk:
    return ValueByPk(texts({key: error.code for key, error in errors.items()}), TextField())


def _due_again(ends: Sequence[Completion]) -> NowPlus:
    return NowPlus(ValueByPk({end.task_id: str(end.again_in) for end in ends}, models.FloatField()))
