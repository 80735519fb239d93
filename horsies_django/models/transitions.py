"""The transitions of tasks: each is one guarded update, between the states that ``core.lifecycle`` lists.

Batched transitions take values, because building model instances would cost more than the database. Every change that a
worker makes is fenced by the *claim*, a number on the row that grows with each claim: a write under an older claim,
even of the same worker, matches no row. The worker's id is compared too, because after a failover that lost commits
two workers may hold the same number.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.db import Error, IntegrityError, OperationalError, connections, models, transaction
from django.db.models import Case, Exists, F, OuterRef, Q, TextField, Value, When
from django.db.models.functions import Greatest

from ..core import lifecycle
from ..core.current_task import atomic_task_id
from ..core.lifecycle import Transition
from ..core.results import OperationalCode, OutcomeCode, TaskError
from ..core.serialization import clean_text
from ..core.signals import has_receivers, task_cancelled, task_expired
from ..core.status import AttemptOutcome, StepStatus, TaskStatus
from ..core.unique import UniqueUntil
from ..db.errors import is_permanent_error, is_row_error, primary_message
from ..db.expressions import NowPlus, ValueByPk, integers, texts
from ..db.notifications import ANY_QUEUE, notify_revoked_after_commit, wake_after_commit
from ..db.now import Now
from ..db.on_commit import on_commit_robust
from .attempt import AttemptError, TaskAttempt, TaskAttemptQuerySet
from .claim.columns import (
    CLAIMED_COLUMNS,
    START_COLUMNS,
    body_start,
    claim_columns,
    completion_columns,
    seconds_since_start,
)
from .claim.query import not_past_deadline
from .claims import (
    EVENT_WAIT,
    WORKFLOW_WAIT,
    ClaimedTask,
    ClaimRef,
    Completion,
    WorkerInfo,
    claimed_tasks,
    error_result,
    raise_unless_all_claimed,
)
from .operator_actions import ENGINE_TASK_PREFIX, OperatorActions
from .release_blocked import IS_LIMITED, release_after_commit
from .retention import kept_until
from .subscribers import subscribers
from .task_step import TaskStep
from .workflow import Workflow

if TYPE_CHECKING:
    from .task import Task  # noqa: F401  # the base class below names it

logger = logging.getLogger("horsies_django")

#: Maximum rows that one statement of a reaper's duty changes.
BATCH: Final = 500

#: PostgreSQL's SQLSTATE for a deadlock, and the number of retries.
DEADLOCK: Final = "40P01"
TRIES: Final = 3

_CLAIM_CLEARED: Final[dict[str, Any]] = {"claimed_at": None, "claimed_by_worker_id": None, "started_at": None}


#: Columns for a return from RUNNING to PENDING. A unique key that holds until the start is released, because another
#: task may hold it by now.
_KEY_RELEASED: Final[dict[str, Any]] = {
    "unique_until": Case(
        When(unique_until=UniqueUntil.STARTED.value, then=Value(UniqueUntil.RELEASED.value)), default=F("unique_until")
    )
}


#: The errors of cancelled tasks.
_CANCELLED: Final = TaskError[None](error_code=OutcomeCode.TASK_CANCELLED, message="The task was cancelled.")
_ROW_GONE: Final = TaskError[None](
    error_code=OutcomeCode.ABOUT_ROW_GONE, message="The row that the task is about was deleted."
)


class TaskQuerySet(OperatorActions["Task"]):
    """Tasks and their transitions."""

    # From PENDING to RUNNING.

    def make_due_claimable(self, limit: int = BATCH) -> int:
        """Move due tasks that were scheduled, or that wait for a retry, into the index of claims; return how many."""
        due = self.deferred().filter(enqueued_at__lte=Now()).order_by("enqueued_at")
        limit_keys = dict(due.lock().values_list("pk", "limit_key")[:limit])
        release_after_commit(self.db, limit_keys.values())
        values = {"deferred": IS_LIMITED, "blocked": IS_LIMITED, "waits_for": None}
        return self.filter(pk__in=limit_keys).update(**values) if limit_keys else 0

    def claim(self, worker_id: str, *, start: int, prefetch: int = 0, is_async: bool = False) -> list[ClaimedTask]:
        """PENDING → RUNNING for the first ``start`` due tasks, PENDING → CLAIMED for ``prefetch`` more.

        Tasks are claimed in the order of claims, from paused queues too. Raises :class:`~.claims.ClaimLost`.
        """
        asked_at = time.monotonic()
        rows = self.next_up(is_async=is_async).lock().values_list(*CLAIMED_COLUMNS)
        claims = claimed_tasks(rows[: start + prefetch], asked_at)
        for change, batch, values in (
            (lifecycle.CLAIM_AND_START, claims[:start], claim_columns(worker_id) | START_COLUMNS),
            (lifecycle.CLAIM, claims[start:], claim_columns(worker_id)),
        ):
            mine = self.all_rows().filter(pk__in=[claim.task_id for claim in batch])
            if batch:
                raise_unless_all_claimed(mine._apply(change, **values), len(batch))
        return claims

    def start(self, claims: Sequence[ClaimRef], worker_id: str) -> set[UUID]:
        """CLAIMED → RUNNING; return the ids of the tasks that may start.

        A task whose ``good_until`` has passed becomes EXPIRED instead: it gets no attempt and keeps its claim.
        """
        mine = self.under_claims(claims, TaskStatus.CLAIMED, worker_id)
        if mine.filter(not_past_deadline())._apply(lifecycle.START, **START_COLUMNS) == len(claims):
            return {claim.task_id for claim in claims}
        mine._expire(lifecycle.EXPIRE_CLAIMED)
        return set(self.under_claims(claims, TaskStatus.RUNNING, worker_id).values_list("pk", flat=True))

    def release(self, claims: Sequence[ClaimRef], worker_id: str) -> int:
        """CLAIMED → PENDING by the worker itself; uses up no attempt."""
        return self.under_claims(claims, TaskStatus.CLAIMED, worker_id)._apply(lifecycle.RELEASE, **_CLAIM_CLEARED)

    def revert_start(self, claims: Sequence[ClaimRef], worker_id: str) -> int:
        """RUNNING → PENDING by the worker itself, for tasks whose body never began; uses up no attempt."""
        mine = self.under_claims(claims, TaskStatus.RUNNING, worker_id)
        return mine._apply(
            lifecycle.REVERT_START, attempt=Greatest(F("attempt") - 1, 0), **_CLAIM_CLEARED, **_KEY_RELEASED
        )

    # While a task runs.

    def store_progress(self, notes: Mapping[ClaimedTask, str], worker_id: str) -> set[UUID]:
        """Store the progress that tasks report, as JSON texts; return the ids of the updated tasks.

        Locked rows are skipped: a task may lock its own row in a transaction, and the worker must not wait for it.
        """
        progress = ValueByPk({claim.task_id: note for claim, note in notes.items()}, models.JSONField())
        with transaction.atomic(using=self.db):
            mine = self.under_claims(notes.keys(), TaskStatus.RUNNING, worker_id)
            free = set(mine.lock().values_list("pk", flat=True))
            self.all_rows().filter(pk__in=free).update(progress=progress)
        return free

    # The end of a run.

    def complete(self, ends: Sequence[Completion], runner: WorkerInfo) -> int:
        """RUNNING → COMPLETED; store the results and the attempts, and return how many tasks completed."""
        results = {end.task_id: end.result for end in ends}
        mine = self.under_claims(ends, TaskStatus.RUNNING, runner.worker_id)
        count = mine._apply(lifecycle.COMPLETE, **completion_columns(results, _seconds_by_pk(ends), self.db))
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
        """RUNNING → FAILED; store the errors and the attempts."""
        errors = {end.task_id: end.error for end in ends if end.error}
        self.under_claims(ends, TaskStatus.RUNNING, runner.worker_id)._apply(
            lifecycle.FAIL,
            **_started(ends),
            result=ValueByPk({end.task_id: end.result for end in ends}, models.JSONField()),
            **_error_columns(errors),
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
        """RUNNING → PENDING, due after ``delay``; FAILED if that is past ``good_until``.

        If ``is_charged``, it uses up one of the task's retries. One statement locks the rows and compares the deadline,
        because the attempt has to be written before ``started_at`` is cleared.
        """
        due, has_begun = _next_due(ends), Q(pk__in=[end.task_id for end in ends if end.has_records])
        is_in_time = Q(good_until__isnull=True) | Q(good_until__gt=due) | has_begun
        in_time = Case(When(is_in_time, Value(True)), default=Value(False))
        mine = self.under_claims(ends, TaskStatus.RUNNING, runner.worker_id)
        has_time = dict(mine.lock(skip=False).values_list("pk", in_time))
        if again := [end for end in ends if has_time.get(end.task_id)]:
            rows = self.under_claims(again, TaskStatus.RUNNING, runner.worker_id)
            errors = {end.task_id: end.error for end in again if end.error}
            self._attempts.record(
                rows,
                outcome,
                will_retry=True,
                errors=errors,
                hostname=runner.hostname,
                pid=runner.pid,
                **_started(again),
            )
            rows._apply(
                lifecycle.RETRY_LATER,
                **_error_columns(errors),
                retry_count=F("retry_count") + int(is_charged),
                next_retry_at=due,
                enqueued_at=due,
                deferred=True,
                unknown_to=None,
                **_deadline(again),
                **_CLAIM_CLEARED,
                **_KEY_RELEASED,
            )
            wake_after_commit(self.db, ANY_QUEUE, later=True)  # this worker may be gone by then
        if too_late := [end for end in ends if has_time.get(end.task_id) is False]:
            self.fail(too_late, runner, outcome)

    def snooze(self, ends: Sequence[Completion], worker_id: str) -> int:
        """RUNNING → PENDING, due after ``delay`` or when what it waits for comes; uses up no attempt.

        What comes before the commit finds no waiting row, so this looks for it afterwards.
        """
        waits = {end.task_id: end.waits_for for end in ends if end.waits_for is not None}
        values = {"waits_for": ValueByPk(texts(waits), TextField()) if waits else None, **_deadline(ends)}
        count = self._reschedule(lifecycle.SNOOZE, ends, worker_id, unknown_to=None, **values)
        if waits:
            on_commit_robust(self.db, self._wake_if_come, waits)
        return count

    def restart(self, end: Completion, columns: Mapping[str, str], worker_id: str) -> int:
        """RUNNING → PENDING as a fresh run with other arguments, without the records; uses up no attempt."""
        values: dict[str, Any] = {
            name: ValueByPk({end.task_id: text}, models.JSONField()) for name, text in columns.items()
        }
        values |= dict.fromkeys(("checkpoint", "progress", "unknown_to", "good_until"))
        count = self._reschedule(lifecycle.RESTART, [end], worker_id, retry_count=0, **values)
        if count:
            TaskStep.objects.using(self.db).filter(task=end.task_id).drop()
        return count

    def whose_event_came(self) -> TaskQuerySet:
        """Waiting tasks whose event has come: it took the place of the record of their wait, with its claim."""
        came = TaskStep.objects.using(self.db).filter(status=StepStatus.UNREAD, claim__gt=0)
        return self.all_rows().pending().filter(Exists(came.filter(task=OuterRef("pk"), name=OuterRef("waits_for"))))

    def _wake_if_come(self, waits: Mapping[UUID, str]) -> None:
        """Wake those of these waiting tasks whose event has come, or whose workflow has ended or is not there."""
        if events := [key for key, name in waits.items() if name.startswith(EVENT_WAIT)]:
            self.whose_event_came().filter(pk__in=events).wake()
        ids = {
            name: UUID(name.removeprefix(WORKFLOW_WAIT)) for name in waits.values() if name.startswith(WORKFLOW_WAIT)
        }
        if ids:
            live = set(Workflow.objects.using(self.db).live().filter(pk__in=ids.values()).values_list("pk", flat=True))
            ended = [name for name, key in ids.items() if key not in live]
            self.all_rows().filter(pk__in=waits, waits_for__in=ended).wake()

    def wake_waiting_after_commit(self, names: Collection[str]) -> None:
        """Wake those of these tasks that wait for one of these names, once the current transaction has committed."""
        if names:
            on_commit_robust(self.db, self.filter(waits_for__in=names).wake)

    def wake(self) -> int:
        """Make these waiting tasks due now; return how many. Locked ones are left to the reaper.

        A task that a paused workflow holds back goes on waiting for that.
        """
        waiting = self.pending().filter(waits_for__isnull=False)
        stays = Case(When(Q(limit_key__isnull=False) | Q(blocked=True), then=Value(True)), default=Value(False))
        with transaction.atomic(using=self.db):
            limits = dict(waiting.lock().values_list("pk", "limit_key"))
            rows = self.all_rows().pending().filter(pk__in=limits, waits_for__isnull=False)
            values = {"deferred": stays, "blocked": stays, "waits_for": None}
            count = rows.update(enqueued_at=Now(), **values) if limits else 0
        if count:
            wake_after_commit(self.db, ANY_QUEUE)
            release_after_commit(self.db, limits.values())
        return count

    def release_unknown(self, ends: Sequence[Completion], worker_id: str) -> int:
        """RUNNING → PENDING, due after ``delay``, for a worker whose code knows the task; uses up no attempt."""
        notes = ValueByPk({end.task_id: end.unknown_to or "null" for end in ends}, models.JSONField())
        return self._reschedule(lifecycle.RELEASE_UNKNOWN, ends, worker_id, unknown_to=notes)

    def _reschedule(
        self, transition: Transition[TaskStatus], ends: Sequence[Completion], worker_id: str, **values: Any
    ) -> int:
        count = self.under_claims(ends, TaskStatus.RUNNING, worker_id)._apply(
            transition,
            attempt=Greatest(F("attempt") - 1, 0),
            enqueued_at=_next_due(ends),
            next_retry_at=None,
            deferred=True,
            **values,
            **_CLAIM_CLEARED,
            **_KEY_RELEASED,
        )
        wake_after_commit(self.db, ANY_QUEUE, later=True)
        return count

    # For the reaper.

    def requeue(self) -> int:
        """CLAIMED → PENDING, for tasks whose claimer sends no heartbeats."""
        return self._apply(lifecycle.REQUEUE, **_CLAIM_CLEARED)

    def set_aside(self, key: UUID, error: Exception) -> int:
        """Fail the one of these tasks whose row caused ``error``; return how many. A row that refuses that is left."""
        count = 0
        if is_row_error(error):
            try:
                count = self.filter(pk=key)._fail_unreadable(primary_message(error))
            except Error as refusal:
                if not is_permanent_error(refusal):
                    raise
        logger.error("task can't be processed id=%s: %s", key, "marked FAILED" if count else "skipped", exc_info=error)
        return count

    def _fail_unreadable(self, why: str) -> int:
        """PENDING, CLAIMED, RUNNING → FAILED for rows that break a statement; return how many. Writes no attempt."""
        rows = self.filter(lifecycle.FAIL_UNREADABLE.is_possible)
        message = clean_text(f"The row can't be processed: {why}")
        error = TaskError[None](error_code=OperationalCode.WORKER_ROW_UNREADABLE, message=message)
        with transaction.atomic(using=self.db), subscribers.follow_nodes(rows), rows.releasing_limits():
            return rows._apply(
                lifecycle.FAIL_UNREADABLE,
                result={"err": error.as_json()},
                error_code=OperationalCode.WORKER_ROW_UNREADABLE.value,
                fingerprint=None,
                failed_at=Now(),
                next_retry_at=None,
                waits_for=None,
                kept_until=kept_until(TaskStatus.FAILED, self.db),
            )

    def expire(self) -> int:
        """PENDING → EXPIRED for tasks whose ``good_until`` has passed; writes no attempt."""
        return self._expire(lifecycle.EXPIRE)

    # For the end, or the pause, of a workflow.

    def expire_claimed(self) -> int:
        """CLAIMED → EXPIRED for tasks past ``good_until``, even if their workflow is paused or cancelled."""
        return self._expire(lifecycle.EXPIRE_CLAIMED)

    def suspend_for_workflow(self) -> int:
        """PENDING, CLAIMED → PENDING for tasks of paused workflows: held back until :meth:`resume_suspended`.

        A suspended task is blocked and has no limit key, so the limiter never releases it. Its place is free. What it
        waits for may come meanwhile.
        """
        with self.releasing_limits():
            return self._apply(lifecycle.SUSPEND, deferred=True, blocked=True, limit_key=None, **_CLAIM_CLEARED)

    def resume_suspended(self, limit_key: Any = None) -> int:
        """Make suspended tasks claimable again, or blocked by this limit key; return how many.

        Those that wait go on waiting until their time.
        """
        is_limited, is_later = Value(limit_key is not None), Q(enqueued_at__gt=Now())
        values: dict[str, Any] = {
            "limit_key": limit_key,
            "deferred": Case(When(is_later, then=Value(True)), default=is_limited),
            "blocked": Case(When(is_later, then=Value(False)), default=is_limited),
            "waits_for": Case(When(is_later, then=F("waits_for"))),
        }
        count = self.suspended().update(released_at=Now(), **values)
        if count:
            wake_after_commit(self.db, ANY_QUEUE)
        return count

    # For operators.

    def cancel(self, *, include_running: bool = False) -> int:
        """PENDING, CLAIMED and, with ``include_running``, RUNNING → CANCELLED; return how many. Writes no attempt.

        A running task is asked to stop within about a second; its result is dropped. Raises TransactionManagementError
        in the body of an atomic task, if that is one of the tasks.
        """
        if include_running:
            self._refuse_own_atomic_task()
        return self._cancel_all(_CANCELLED, include_running=include_running)

    def cancel_without_row(self) -> int:
        """PENDING, CLAIMED, RUNNING → CANCELLED for tasks about rows that are gone; return how many."""
        return self._cancel_all(_ROW_GONE, include_running=True)

    def _cancel_all(self, error: TaskError[Any], *, include_running: bool) -> int:
        possible = lifecycle.CANCEL.is_possible
        if include_running:
            possible |= lifecycle.CANCEL_RUNNING.is_possible
        # One statement, because a task that starts between two would not be cancelled.
        rows = self.filter(possible)
        with subscribers.follow_nodes(rows), rows.releasing_limits():
            count = self._retry_on_deadlock(lambda: rows._cancel(possible, error))
        if count and include_running:
            notify_revoked_after_commit(self.db)
        return count

    def _refuse_own_atomic_task(self) -> None:
        key = atomic_task_id()
        if key is not None and self.filter(lifecycle.CANCEL_RUNNING.is_possible, pk=key).exists():
            raise transaction.TransactionManagementError(
                f"Task {key} is atomic, and its body can't cancel it with include_running=True: the task can't end "
                "before its transaction. Raise Discard, or cancel without include_running: then the body ends first."
            )

    def cancel_for_workflow(self) -> int:
        """PENDING, CLAIMED → CANCELLED for nodes of a workflow, which updates the nodes itself."""
        possible = lifecycle.CANCEL.is_possible
        rows = self.filter(possible)
        with rows.releasing_limits():
            return rows._cancel(possible, _CANCELLED)

    def _cancel(self, possible: Q, error: TaskError[Any]) -> int:
        """Cancel these tasks, whose states allow it; in batches if the signal has receivers."""
        values = self._cancel_columns(error)
        if not has_receivers(task_cancelled):
            return self.update(status=lifecycle.CANCEL.target, **values)
        with transaction.atomic(using=self.db):
            # Lock the rows first, to know the ids that the signal reports.
            rows = self.all_rows().filter(possible)
            keys = list(rows.filter(pk__in=self.values("pk")).lock(skip=False).values_list("pk", flat=True))
            for start in range(0, len(keys), BATCH):
                batch = rows.filter(pk__in=keys[start : start + BATCH])
                batch.update(status=lifecycle.CANCEL.target, **values)
            subscribers.send_ended(task_cancelled, self.db, keys)
        return len(keys)

    def _cancel_columns(self, error: TaskError[Any]) -> dict[str, Any]:
        return {
            "cancelled_at": Now(),
            "next_retry_at": None,
            "waits_for": None,
            "error_code": str(error.error_code),
            "fingerprint": None,
            "result": {"err": error.as_json()},
            "kept_until": kept_until(TaskStatus.CANCELLED, self.db),
        }

    def retry(self) -> int:
        """FAILED, CANCELLED, EXPIRED → PENDING, with all retries again; return how many.

        Attempts are kept and their numbering continues. A task is left alone if another live task holds its unique key.
        """
        dead = self.filter(lifecycle.RETRY_ENDED.is_possible)
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

    def run_now(self) -> int:
        """Make scheduled and retrying tasks due now; return how many.

        A retry keeps its count and its limit. The engine's own tasks are left alone, because their wait is a sleep or
        an event's time-out, and so are tasks past ``good_until``. An open group is closed: later calls start another.
        """
        is_later = Q(not_past_deadline(), enqueued_at__gt=Now(), waits_for__isnull=True)
        is_later &= ~Q(task_name__startswith=ENGINE_TASK_PREFIX)
        retry = Case(When(next_retry_at__isnull=False, then=Now()))
        rows = self.pending().filter(is_later)
        limited = rows.limit_keys()
        values = {"deferred": IS_LIMITED, "blocked": IS_LIMITED, "next_retry_at": retry, "group_key": None}
        count = rows.update(enqueued_at=Now(), **values)
        if count:
            wake_after_commit(self.db, ANY_QUEUE)
            release_after_commit(self.db, limited)
        return count

    def _retry_with_keys(self, keys: Sequence[UUID]) -> int:
        """Retry tasks with unique keys, except those whose key another task has taken meanwhile."""
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
            lifecycle.RETRY_ENDED,
            enqueued_at=Now(),
            deferred=IS_LIMITED,
            blocked=IS_LIMITED,
            retry_count=0,
            next_retry_at=None,
            good_until=Case(When(good_until__gt=Now(), then=F("good_until"))),
            result=None,
            error_code=None,
            fingerprint=None,
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
        """Return all tasks of the same database, without this queryset's filters."""
        return self.model.objects.using(self.db)

    @contextmanager
    def releasing_limits(self) -> Iterator[None]:
        """Around a change that frees places of limits: release blocked tasks of these limits after the commit."""
        limited = self.limit_keys()
        yield
        release_after_commit(self.db, limited)

    def under_claims(self, claims: Collection[ClaimRef], status: TaskStatus, worker_id: str) -> TaskQuerySet:
        """Return the rows in ``status`` that still have these claims by this worker ("" for none): the fence."""
        tokens = ValueByPk(integers({held.task_id: held.claim for held in claims}), models.IntegerField())
        keys = [held.task_id for held in claims]
        return self.all_rows().filter(pk__in=keys, status=status, claim=tokens, claimed_by_worker_id=worker_id or None)

    def _apply(self, transition: Transition[TaskStatus], **values: Any) -> int:
        """Apply a transition to the rows whose state allows it; return how many."""
        return transition.apply(self, **values)

    def _retry_on_deadlock(self, update: Callable[[], int]) -> int:
        """Retry the update if it deadlocked with a worker that locked the same rows in another order.

        Inside a transaction it raises, because only the owner of the transaction can retry all of it.
        """
        for _ in range(TRIES):
            try:
                return update()
            except OperationalError as error:
                is_deadlock = getattr(error.__cause__, "sqlstate", "") == DEADLOCK
                if not is_deadlock or connections[self.db].in_atomic_block:
                    raise
        return update()

    @property
    def _attempts(self) -> TaskAttemptQuerySet:
        return TaskAttempt.objects.using(self.db)

    def _expire(self, transition: Transition[TaskStatus]) -> int:
        """Expire the tasks that are past ``good_until``. The result names task and worker; the claim is kept."""
        columns = "pk", "claimed_by_worker_id", "limit_key", "error_code"
        late = list(self.filter(good_until__lte=Now()).values_list(*columns))
        release_after_commit(self.db, [limit_key for _, _, limit_key, _ in late])
        last_errors = self._last_errors([key for key, *_, error_code in late if error_code is not None])
        results = {
            key: error_result(
                OutcomeCode.TASK_EXPIRED,
                f"good_until passed while the task waited for its retry, after {last_errors[key]}"
                if key in last_errors
                else "good_until passed before the task began.",
                {"task_id": str(key), "worker_id": worker_id},
            )
            for key, worker_id, *_ in late
        }
        if not results:
            return 0
        subscribers.send_ended(task_expired, self.db, list(results))
        return self.filter(pk__in=results)._apply(
            transition,
            expired_at=Now(),
            next_retry_at=None,
            error_code=OutcomeCode.TASK_EXPIRED.value,
            fingerprint=None,
            result=ValueByPk(results, models.JSONField()),
            kept_until=kept_until(TaskStatus.EXPIRED, self.db),
        )

    def _last_errors(self, keys: Sequence[UUID]) -> dict[UUID, str]:
        """Return the error of the last attempt of each of these tasks, as code and message."""
        last = self._attempts.filter(task__in=keys, attempt=F("task__attempt"))
        rows = last.values_list("task_id", "error_code", "error_message") if keys else ()
        return {key: f"{code}: {message}" for key, code, message in rows}


def _deadline(ends: Sequence[Completion]) -> dict[str, Any]:
    """Clear the deadlines of tasks that have recorded something, because they have begun."""
    begun = [end.task_id for end in ends if end.has_records]
    time = models.DateTimeField()
    cleared = Case(When(pk__in=begun, then=Value(None, time)), default=F("good_until"), output_field=time)
    return {"good_until": cleared} if begun else {}


def _error_columns(errors: Mapping[UUID, AttemptError]) -> dict[str, ValueByPk]:
    codes = {key: error.code for key, error in errors.items()}
    fingerprints = {key: error.fingerprint for key, error in errors.items()}
    return {
        "error_code": ValueByPk(texts(codes), TextField()),
        "fingerprint": ValueByPk(texts(fingerprints), TextField()),
    }


def _started(ends: Sequence[Completion]) -> dict[str, Any]:
    """Return when the functions began; nothing if that is unknown, because the row then says it best."""
    return {"started_at": body_start(_seconds_by_pk(ends))} if all(end.began for end in ends) else {}


def _seconds_by_pk(ends: Sequence[Completion]) -> dict[UUID, str]:
    return dict(zip([end.task_id for end in ends], seconds_since_start(ends), strict=True))


def _next_due(ends: Sequence[Completion]) -> NowPlus:
    return NowPlus(ValueByPk({end.task_id: str(end.delay) for end in ends}, models.FloatField()))
