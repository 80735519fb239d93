"""Steps: what a task has recorded, so that a later run of its body goes on from there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Final, Self, cast
from uuid import UUID

from django.db import connections, models
from django.db.models import Case, Count, Exists, F, OuterRef, Q, QuerySet, Subquery, TextField, Value, When
from django.db.models.functions import Cast, Coalesce
from django.db.models.lookups import Exact, IsNull, LessThan
from django.utils.translation import gettext_lazy as _

from ..core.status import TASK_LIVE_STATES, StepKind, StepStatus, TaskStatus
from ..db import now, postgres
from ..db.constraints import values_in_range
from ..db.expressions import BoundParam, NowPlus, Param, SecondsUntil, ValueByPk
from ..db.fields import DateTimeField, JSONField
from ..db.now import Now
from ..db.statements import Statement
from .claims import NAME_LENGTH, ClaimRef, StepRecord
from .worker import Worker


class TaskStepQuerySet(models.QuerySet["TaskStep"]):
    """Records are written under the claim of their task; a record that is COMPLETED never changes."""

    def in_order(self) -> Self:
        """Order the records of a task as its body does; then its waits and unread events."""
        return self.order_by(F("position").asc(nulls_last=True), "pk")

    def records_of(self, task_id: UUID) -> list[StepRecord]:
        """Return the records of a task."""
        columns = (
            *("name", "number", "kind", "status"),
            Cast("result", TextField()),
            *("attempts", "attempt", "position"),
            SecondsUntil("due_at"),
        )
        return [StepRecord(*row) for row in self.filter(task_id=task_id).values_list(*columns)]

    def progress(self) -> Self:
        """Records without which a run that starts again would do more: no failures, and no tries of a step."""
        return self.exclude(status=StepStatus.FAILED).exclude(kind=StepKind.STEP, status=StepStatus.WAITING)

    def kept(self) -> Self:
        """Records that the body has to meet before it does anything new."""
        is_outside_order = Q(status=StepStatus.COMPLETED, position=None)
        return self.progress().filter(~is_outside_order, attempt__gt=0).exclude(kind=StepKind.PATCH)

    def write(self, record: StepRecord, claimed: ClaimRef, worker_id: str) -> bool:
        """Write a record from the row of its task; return whether the worker still holds the task.

        It locks that row, but not for a wait or its time-out: these may have to wait for the transaction of a sender,
        and nothing but the tick follows from them. One that waits is due ``due_in`` seconds from now; None waits
        without end. A record that is COMPLETED is kept, as is an unread event, unless this completes it:
        then it returns False too.
        """
        connection = connections[self.db]
        ends = record.status in (StepStatus.COMPLETED, StepStatus.FAILED)
        values = {
            "task_id": _TASK_ID.get_db_prep_value(claimed.task_id, connection),
            "claim": claimed.claim,
            "worker_id": worker_id,
            **{name: getattr(record, name) for name in _COPIED},
            "seconds": -record.seconds,
            "due_in": record.due_in,
        }
        is_wait = record.status == StepStatus.WAITING or (record.kind, record.status) == _TIME_OUT
        statement = _insert(self.db, ends, now.offset(), locks=not is_wait)
        if connection.vendor == "postgresql" and connection.get_autocommit():
            return postgres.run_prepared(connection, lambda _: statement, values) is not None
        return statement.first(self.db, values) is not None

    def give_event(self, name: str, payloads: Mapping[UUID, str]) -> set[UUID]:
        """WAITING → UNREAD for tasks that wait for an event, with payloads as JSON results; return those tasks.

        No task's row is locked. A body whose wait times out meanwhile decides by the lock of the record.
        """
        live = _tasks().using(self.db).filter(pk=OuterRef("task"), status__in=sorted(TASK_LIVE_STATES))
        waiting = self.filter(Exists(live), task__in=payloads, name=name, status=StepStatus.WAITING)
        result = ValueByPk(payloads, models.JSONField(), "task_id")
        return Statement.update(waiting, status=StepStatus.UNREAD, result=result).keys(self.db, "task_id")

    def add_event(self, name: str, payloads: Mapping[UUID, str]) -> set[UUID]:
        """Write an event under its next number, for live tasks that do not wait for it; return those tasks.

        Left out are tasks with too many unread events, and those to which another sender writes the same number, or
        which begin to wait under it: the unique constraint decides.
        """
        of_name = self.filter(task=OuterRef("pk"), name=name).order_by()
        columns = {
            "task_id": F("pk"),
            "name": Value(name),
            "number": Coalesce(Subquery(of_name.order_by("-number").values("number")[:1]), 0) + 1,
            "kind": Value(StepKind.EVENT.value),
            "status": Value(StepStatus.UNREAD.value),
            "result": ValueByPk(payloads, models.JSONField()),
            "attempts": Value(1),
            "attempt": Value(0),
            "claim": Value(0),
            "started_at": Now(),
        }
        free = self.with_room(payloads).filter(~Exists(of_name.filter(status=StepStatus.WAITING)))
        return Statement.insert(TaskStep, free, columns).keys(self.db, "task_id")

    def drop(self) -> None:
        """Delete these records of a task for a fresh run, but unread events.

        The last event of each name stays, without a position: the numbers of events go on after it.
        """
        read = self.exclude(status=StepStatus.UNREAD)
        of_name = self.model._default_manager.using(self.db).filter(task=OuterRef("task"), name=OuterRef("name"))
        read.filter(~Q(kind=StepKind.EVENT) | Exists(of_name.filter(number__gt=OuterRef("number")))).delete()
        read.update(position=None, result=None)

    def with_room(self, keys: Collection[UUID]) -> QuerySet[Any]:
        """Return those of these tasks that are live and may get another unread event."""
        unread = self.filter(task=OuterRef("pk"), status=StepStatus.UNREAD).order_by().values("task")
        has_room = LessThan(Coalesce(Subquery(unread.annotate(count=Count("pk")).values("count")), 0), MAX_UNREAD)
        live: QuerySet[Any] = _tasks().using(self.db).filter(pk__in=keys, status__in=sorted(TASK_LIVE_STATES))
        return live.filter(has_room)


#: Maximum events of a task that its body has not read.
MAX_UNREAD: Final = 1_000

_TASK_ID: Final[models.UUIDField[Any, Any]] = models.UUIDField()

_TIME_OUT: Final = (StepKind.EVENT, StepStatus.FAILED)

_COPIED: Final = ("name", "number", "kind", "status", "result", "attempts", "position")

#: What a second write of the same record changes.
_CHANGED: Final = ("status", "result", "attempts", "attempt", "claim", "position")

#: A record that must stay: see :meth:`TaskStepQuerySet.write`.
_MAY_CHANGE: Final = (
    "WHERE horsies_task_steps.status <> 'COMPLETED'"
    " AND (horsies_task_steps.status <> 'UNREAD' OR EXCLUDED.status = 'COMPLETED') RETURNING id"
)


@lru_cache(maxsize=16)
def _insert(alias: str, ends: bool, offset: object, *, locks: bool) -> Statement:  # the clock is part of the SQL
    """Return the INSERT of a record, which takes the columns of its task from the row."""
    held = (
        _tasks()
        .using(alias)
        .filter(
            pk=_param("task_id", _TASK_ID),
            claim=_param("claim", models.BigIntegerField()),
            status=TaskStatus.RUNNING,
        )
    )
    # Not by its index, which finds all tasks of the worker.
    held = held.filter(Exact(Coalesce("claimed_by_worker_id", Value("")), _param("worker_id", TextField())))
    worker = Worker.objects.using(alias).filter(pk=_param("worker_id", TextField()))
    due_in = _param("due_in", models.FloatField())
    due_at = Case(When(IsNull(due_in, False), then=NowPlus(due_in)), output_field=models.DateTimeField())
    last = {"completed_at": Now()} if ends else {"due_at": due_at}
    columns = {
        "task_id": F("pk"),
        "claim": F("claim"),
        "attempt": F("attempt"),
        "code_version": Coalesce(Subquery(worker.values("code_version")), Value("")),
        **{name: _param(name, cast("models.Field[Any, Any]", TaskStep._meta.get_field(name))) for name in _COPIED},
        "started_at": NowPlus(_param("seconds", models.FloatField())),
        **last,
    }
    key, changed = ("task_id", "name", "number"), (*_CHANGED, *last)
    return Statement.insert(TaskStep, held, columns, key=key, changed=changed, suffix=_MAY_CHANGE, locks=locks)


def _tasks() -> Any:
    """Return the manager of tasks."""
    return cast("Any", TaskStep._meta.get_field("task").related_model).objects


def _param(name: str, field: models.Field[Any, Any]) -> BoundParam:
    return BoundParam(Param(name), field)


class TaskStep(models.Model):
    """One record of a task."""

    id = models.BigAutoField(primary_key=True)
    # No constraint, as for attempts.
    task = models.ForeignKey(
        "horsies_django.Task",
        models.CASCADE,
        db_constraint=False,
        db_index=False,
        related_name="steps",
        verbose_name=_("task"),
    )
    name = models.CharField(_("name"), max_length=NAME_LENGTH)
    number = models.PositiveIntegerField(_("number"), default=1, help_text=_("From 1 within a name."))
    kind = models.CharField(_("kind"), max_length=7, choices=StepKind.choices)
    status = models.CharField(_("state"), max_length=9, choices=StepStatus.choices)
    result = JSONField(_("result"), null=True, blank=True)
    attempts = models.PositiveIntegerField(_("attempts"), default=1)
    attempt = models.PositiveIntegerField(_("attempt"), default=0, help_text=_("The task's attempt that recorded it."))
    claim = models.PositiveBigIntegerField(_("claim"), default=0, help_text=_("The task's claim that recorded it."))
    position = models.PositiveIntegerField(
        _("position"), null=True, blank=True, help_text=_("Its place in the order of the body.")
    )
    code_version = models.CharField(
        _("version of the code"),
        max_length=64,
        blank=True,
        default="",
        db_default="",
        help_text=_("Of the worker that recorded it first."),
    )
    due_at = DateTimeField(_("due at"), null=True, blank=True, help_text=_("When the wait ends at the latest."))
    started_at = DateTimeField(_("started at"), db_default=Now())
    completed_at = DateTimeField(_("completed at"), null=True, blank=True)

    objects = TaskStepQuerySet.as_manager()

    class Meta:
        db_table = "horsies_task_steps"
        verbose_name = _("step")
        verbose_name_plural = _("steps")
        indexes = [
            # The reaper wakes tasks whose event came while its sender died. An event that came first has no claim.
            models.Index(fields=["task"], condition=Q(status=StepStatus.UNREAD, claim__gt=0), name="horsies_step_came"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["task", "name", "number"], name="horsies_step_is_recorded_once"),
            models.CheckConstraint(condition=Q(kind__in=StepKind.values), name="horsies_step_kind_is_known"),
            models.CheckConstraint(condition=Q(status__in=StepStatus.values), name="horsies_step_status_is_known"),
            values_in_range("step", "due_at started_at completed_at number attempts attempt claim position task"),
        ]

    def __str__(self) -> str:
        return f"{self.task_id} {self.name} #{self.number}"
