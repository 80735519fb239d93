"""Every change of a task's state, each one guarded update (the table of states, row by row).

A transition that batches takes values, not instances: on the way of each task, model instances would cost more than the
database. The guard of everything a worker does is the *claim*: a number on the row that grows each time the row is
claimed, so that whatever comes from an older claim, even of the same worker, matches no row and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

from django.db import IntegrityError, connections, models, transaction
from django.db.models import Case, Exists, F, OuterRef, Q, TextField, Value, When
from django.db.models.functions import Cast, Now

from ..expressions import FromMap, FromNow, integers, texts
from ..results import OutcomeCode, TaskError
from ..states import TASK_LIVE_STATES, TASK_RETRYABLE_STATES, AttemptOutcome, BeatRole, TaskStatus
from ..waking import ANY_QUEUE, wake_after_commit
from .attempt import TaskAttempt
from .claims import ClaimedTask, ClaimLost, Ended, Held, Runner, error_result
from .heartbeat import Heartbeat

if TYPE_CHECKING:
    from .task import Task  # noqa: F401  # the base class below names it

#: Rows that one statement of a reaper's duty changes at most.
BATCH: Final = 500

#: The condition of the index of held rows. Its second half is true of every row: only who states it, to find rows by
#: who holds them, gets that index. Who has primary keys must not: it is full of dead entries while vacuum can't run.
IS_HELD: Final = Q(status__in=[TaskStatus.CLAIMED, TaskStatus.RUNNING], claim__gte=0)

_UNCLAIMED: Final[dict[str, Any]] = {"claimed_at": None, "claimed_by_worker_id": None, "started_at": None}


def _text(column: str) -> Cast:
    """The stored JSON as it stands: a damaged value must not stop the claim of its neighbours."""
    return Cast(column, TextField())


_CLAIMED_COLUMNS: Final[tuple[Any, ...]] = (
    "pk",
    "task_name",
    "queue_name",
    "backend",
    "priority",
    _text("args"),
    _text("kwargs"),
    "rich",
    F("claim") + 1,
    F("attempt") + 1,
    "retry_count",
    "max_retries",
    _text("retry_policy"),
    "is_async",
    _text("metadata"),
    "enqueued_at",
)


class TaskQuerySet(models.QuerySet["Task"]):
    """The views that an operator knows, and the transitions."""

    # Views.

    def pending(self) -> Self:
        """Tasks that wait, due or not."""
        return self.filter(status=TaskStatus.PENDING)

    def due(self) -> Self:
        """Tasks that may be claimed now (S0-35, S4-19)."""
        return self.pending().filter(_not_past_deadline(), enqueued_at__lte=Now())

    def scheduled(self) -> Self:
        """Tasks that wait for the time they were sent for (S2-02)."""
        return self.pending().filter(enqueued_at__gt=Now(), next_retry_at__isnull=True)

    def retrying(self) -> Self:
        """Tasks that wait for another attempt (S2-05)."""
        return self.pending().filter(next_retry_at__isnull=False)

    def active(self) -> Self:
        """Tasks that a worker holds (S2-04)."""
        return self.filter(IS_HELD)

    def archived(self) -> Self:
        """Tasks that failed for good and are kept (S2-06)."""
        return self.filter(status=TaskStatus.FAILED)

    def completed(self) -> Self:
        """Tasks that succeeded and are kept (S2-07)."""
        return self.filter(status=TaskStatus.COMPLETED)

    # From PENDING to a body that runs.

    def undefer(self, limit: int = BATCH) -> int:
        """Let due tasks that were sent for later, or that wait for a retry, into the index of claims."""
        due = self.pending().filter(deferred=True, enqueued_at__lte=Now()).order_by("enqueued_at")
        keys = list(due._lock().values_list("pk", flat=True)[:limit])
        return self.filter(pk__in=keys, status=TaskStatus.PENDING).update(deferred=False) if keys else 0

    def claimable(self, *, is_async: bool = False) -> Self:
        """Due tasks of one kind, as the index of claims has them."""
        return self.due().filter(deferred=False, is_async=is_async)

    def claim(self, worker_id: str, *, start: int, prefetch: int = 0, is_async: bool = False) -> list[ClaimedTask]:
        """PENDING → RUNNING for the first ``start`` due tasks, PENDING → CLAIMED for ``prefetch`` more.

        In the order priority ↓, enqueued_at ↑, id ↑ (S4-22, S4-23). A task whose body starts as soon as the transaction
        commits needs no second update on its way. Raises :class:`ClaimLost`.
        """
        ready = self.claimable(is_async=is_async).order_by("-priority", "enqueued_at", "pk")
        rows = ready._lock().values_list(*_CLAIMED_COLUMNS)[: start + prefetch]
        claims = [ClaimedTask(*row) for row in rows]
        taken = {"claimed_at": Now(), "claimed_by_worker_id": worker_id, "claim": F("claim") + 1}
        self._take(claims[:start], status=TaskStatus.RUNNING, started_at=Now(), attempt=F("attempt") + 1, **taken)
        self._take(claims[start:], status=TaskStatus.CLAIMED, **taken)
        return claims

    def _take(self, claims: Sequence[ClaimedTask], **values: Any) -> None:
        if not claims:
            return
        keys = [claim.task_id for claim in claims]
        if self._rows().filter(pk__in=keys, status=TaskStatus.PENDING).update(**values) != len(keys):
            raise ClaimLost

    def start(self, claims: Sequence[Held]) -> set[UUID]:
        """CLAIMED → RUNNING, and return the ids of those that may start.

        One whose ``good_until`` has passed becomes EXPIRED instead, with no attempt and its claim kept (S1-16 … S1-19).
        """
        running = {"status": TaskStatus.RUNNING, "started_at": Now(), "attempt": F("attempt") + 1}
        mine = self._held(claims, TaskStatus.CLAIMED)
        if mine.filter(_not_past_deadline()).update(**running) == len(claims):
            return {claim.task_id for claim in claims}
        mine._expire()
        return set(self._held(claims, TaskStatus.RUNNING).values_list("pk", flat=True))

    def release(self, claims: Sequence[Held]) -> int:
        """CLAIMED → PENDING by the worker itself, no attempt burnt."""
        return self._held(claims, TaskStatus.CLAIMED).update(status=TaskStatus.PENDING, **_UNCLAIMED)

    def unstart(self, claims: Sequence[Held]) -> int:
        """RUNNING → PENDING by the worker itself, for bodies that never began: no attempt burnt."""
        return self._held(claims, TaskStatus.RUNNING).update(
            status=TaskStatus.PENDING, attempt=F("attempt") - 1, **_UNCLAIMED
        )

    # The end of a run.

    def complete(self, ends: Sequence[Ended], runner: Runner) -> None:
        """RUNNING → COMPLETED, with the result and the attempt (S0-16)."""
        results = FromMap({end.task_id: end.result for end in ends}, models.JSONField())
        self._held(ends, TaskStatus.RUNNING).update(
            status=TaskStatus.COMPLETED, result=results, error_code=None, completed_at=Now()
        )
        TaskAttempt.objects.using(self.db).record(
            self._held(ends, TaskStatus.COMPLETED),
            AttemptOutcome.COMPLETED,
            hostname=runner.hostname,
            pid=runner.pid,
        )

    def fail(self, ends: Sequence[Ended], runner: Runner, outcome: AttemptOutcome = AttemptOutcome.FAILED) -> None:
        """RUNNING → FAILED, with the error and the attempt (S0-18)."""
        errors = {end.task_id: end.error for end in ends if end.error}
        self._held(ends, TaskStatus.RUNNING).update(
            status=TaskStatus.FAILED,
            result=FromMap({end.task_id: end.result for end in ends}, models.JSONField()),
            error_code=FromMap(texts({key: error.code for key, error in errors.items()}), TextField()),
            failed_at=Now(),
        )
        TaskAttempt.objects.using(self.db).record(
            self._held(ends, TaskStatus.FAILED), outcome, errors=errors, hostname=runner.hostname, pid=runner.pid
        )

    def retry_later(
        self, ends: Sequence[Ended], runner: Runner, outcome: AttemptOutcome = AttemptOutcome.FAILED
    ) -> None:
        """RUNNING → PENDING, due after ``retry_in`` (S0-20); FAILED where that is past ``good_until`` (S1-29).

        The rows are locked and judged in one statement, for the attempt is written while the row still has its start.
        """
        due = FromNow(FromMap({end.task_id: str(end.retry_in) for end in ends}, models.FloatField()))
        in_time = Case(When(Q(good_until__isnull=True) | Q(good_until__gt=due), Value(True)), default=Value(False))
        verdicts = dict(self._held(ends, TaskStatus.RUNNING)._lock(skip=False).values_list("pk", in_time))
        if again := [end for end in ends if verdicts.get(end.task_id)]:
            rows = self._held(again, TaskStatus.RUNNING)
            TaskAttempt.objects.using(self.db).record(
                rows,
                outcome,
                will_retry=True,
                errors={end.task_id: end.error for end in again if end.error},
                hostname=runner.hostname,
                pid=runner.pid,
            )
            rows.update(
                status=TaskStatus.PENDING,
                retry_count=F("retry_count") + 1,
                next_retry_at=due,
                enqueued_at=due,
                deferred=True,
                **_UNCLAIMED,
            )
        if too_late := [end for end in ends if verdicts.get(end.task_id) is False]:
            self.fail(too_late, runner, outcome)

    # What a reaper may do.

    def requeue_stale_claimed(self, threshold: float) -> int:
        """CLAIMED → PENDING where no claimer has beaten for ``threshold`` seconds (S3-06, S3-08)."""
        keys = self.stale_claimed(threshold)._batch_of_keys()
        rows = self.filter(pk__in=keys, status=TaskStatus.CLAIMED)
        return rows.update(status=TaskStatus.PENDING, **_UNCLAIMED) if keys else 0

    def stale_claimed(self, threshold: float) -> Self:
        """CLAIMED tasks for which no claimer has beaten for ``threshold`` seconds (S3-06)."""
        return self._stale(TaskStatus.CLAIMED, "claimed_at", BeatRole.CLAIMER, threshold)

    def stale_running(self, threshold: float) -> Self:
        """RUNNING tasks for which no runner has beaten for ``threshold`` seconds (S3-07)."""
        return self._stale(TaskStatus.RUNNING, "started_at", BeatRole.RUNNER, threshold)

    def held_by(self, worker_id: str) -> Self:
        """Tasks that this worker holds."""
        return self.active().filter(claimed_by_worker_id=worker_id)

    def overdue(self) -> Self:
        """PENDING tasks whose ``good_until`` has passed."""
        return self.pending().filter(good_until__lte=Now())

    def expire_overdue(self) -> int:
        """PENDING → EXPIRED where ``good_until`` has passed (S0-36), no attempt."""
        keys = self.overdue().order_by("good_until")._batch_of_keys()
        return self.filter(pk__in=keys, status=TaskStatus.PENDING)._expire() if keys else 0

    # What a person may do.

    def cancel(self, *, include_running: bool = False) -> int:
        """PENDING, CLAIMED and, when asked, RUNNING → CANCELLED; return how many. No attempt is written."""
        from_states = TASK_LIVE_STATES if include_running else TASK_LIVE_STATES - {TaskStatus.RUNNING}
        return self.filter(status__in=from_states).update(
            status=TaskStatus.CANCELLED,
            cancelled_at=Now(),
            error_code=OutcomeCode.TASK_CANCELLED.value,
            result={
                "err": TaskError(error_code=OutcomeCode.TASK_CANCELLED, message="The task was cancelled.").as_json()
            },
        )

    def retry(self) -> int:
        """FAILED, CANCELLED, EXPIRED → PENDING with a fresh budget; return how many (S4-70, S4-71).

        Attempts are kept and their numbering goes on. A task whose unique key another live task holds stays as it is.
        """
        dead = self.filter(status__in=TASK_RETRYABLE_STATES)
        count = dead.filter(unique_key__isnull=True)._revive()
        for key in list(dead.filter(unique_key__isnull=False).order_by("pk").values_list("pk", flat=True)):
            with suppress(IntegrityError), transaction.atomic(using=self.db):
                count += dead.filter(pk=key)._revive()
        if count:
            wake_after_commit(self.db, ANY_QUEUE)
        return count

    def _revive(self) -> int:
        return self.update(
            status=TaskStatus.PENDING,
            enqueued_at=Now(),
            deferred=False,
            retry_count=0,
            next_retry_at=None,
            good_until=Case(When(good_until__gt=Now(), then=F("good_until"))),
            result=None,
            error_code=None,
            failed_at=None,
            cancelled_at=None,
            expired_at=None,
            **_UNCLAIMED,
        )

    # Helpers.

    def _rows(self) -> TaskQuerySet:
        """Every row on the same database, whatever this queryset was narrowed to."""
        return self.model.objects.using(self.db)

    def _held(self, claims: Collection[Held], status: TaskStatus) -> TaskQuerySet:
        """The rows that are in ``status`` under exactly these claims: the fence."""
        tokens = FromMap(integers({held.task_id: held.claim for held in claims}), models.IntegerField())
        return self._rows().filter(pk__in=[held.task_id for held in claims], status=status, claim=tokens)

    def _lock(self, *, skip: bool = True) -> Self:
        """Lock the rows, without blocking inserts that refer to them. SQLite has no such clause: one writes there."""
        features = connections[self.db].features
        no_key = features.has_select_for_no_key_update
        return self.select_for_update(skip_locked=skip and features.has_select_for_update_skip_locked, no_key=no_key)

    def _batch_of_keys(self) -> list[UUID]:
        return list(self._lock().values_list("pk", flat=True)[:BATCH])

    def _stale(self, status: TaskStatus, since: str, role: BeatRole, threshold: float) -> Self:
        horizon = FromNow(-threshold)
        beats = Heartbeat.objects.using(self.db).filter(
            task=OuterRef("pk"), role=role, sender_id=OuterRef("claimed_by_worker_id"), sent_at__gte=horizon
        )
        silent = Q(**{f"{since}__isnull": True}) | Q(**{f"{since}__lt": horizon})
        return self.active().filter(silent, ~Exists(beats), status=status)

    def _expire(self) -> int:
        """To EXPIRED past ``good_until``, with who and what in the result (S1-17), the claim kept (S1-18)."""
        late = list(self.filter(good_until__lte=Now()).values_list("pk", "claimed_by_worker_id"))
        results = {
            key: error_result(
                OutcomeCode.TASK_EXPIRED,
                "good_until passed before the task began.",
                {"task_id": str(key), "worker_id": worker_id},
            )
            for key, worker_id in late
        }
        if not results:
            return 0
        return self.filter(pk__in=results).update(
            status=TaskStatus.EXPIRED,
            expired_at=Now(),
            error_code=OutcomeCode.TASK_EXPIRED.value,
            result=FromMap(results, models.JSONField()),
        )


def _not_past_deadline() -> Q:
    return Q(good_until__isnull=True) | Q(good_until__gt=Now())
