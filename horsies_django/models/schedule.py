"""Schedules: tasks and workflows that are sent at each slot of a timing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models import Case, F, Q, When
from django.utils.translation import gettext_lazy as _

from ..core.clock import aware, project_timezone
from ..core.operations import log_operation, names_of
from ..db.clock import database_now
from ..db.constraints import values_in_range
from ..db.expressions import NowPlus
from ..db.fields import DateTimeField, JSONField
from ..db.notifications import notify_schedules_changed_after_commit
from ..db.now import Now
from .subscribers import RunHandle, subscribers

if TYPE_CHECKING:
    from ..core.schedule_slots import Slots

#: The default of ``max_catch_up_runs``, and its maximum.
DEFAULT_MAX_CATCH_UP: Final = 100
MAX_CATCH_UP: Final = 10_000

#: Maximum seconds of jitter.
MAX_JITTER: Final = 86_400

#: The columns that the next run depends on: if one changes, the next run is planned again.
PLAN_COLUMNS: Final = ("timing", "timezone", "start_at", "end_at", "skip_nonexistent", "jitter", "enabled")

#: Of these, the row does not store the value that the next run was planned for, as it does for timing and time zone.
CLEARED_ON: Final = frozenset(PLAN_COLUMNS) - {"timing", "timezone"}

#: The timing or the time zone differs from that of the next run, because something other than this model, such as plain
#: SQL, changed it. Rows planned before these columns existed have ''.
PLAN_IS_OUTDATED: Final = ~Q(planned_timing="") & (~Q(planned_timing=F("timing")) | ~Q(planned_timezone=F("timezone")))

#: The columns that the scheduler writes.
SCHEDULER_COLUMNS: Final = (
    "next_run_at",
    "next_slot_at",
    "planned_timing",
    "planned_timezone",
    "last_run_at",
    "last_slot_at",
    "last_task_id",
    "last_workflow_id",
    "run_count",
    "last_error",
)


#: Maximum names in one statement.
NAMES_PER_STATEMENT: Final = 500

#: The least difference of two times.
TICK: Final = timedelta(microseconds=1)

#: A last slot, or a change, that is later than now by more than this was stored before the clock was set back.
CLOCK_STEP: Final = timedelta(hours=1)


class CatchUp(models.TextChoices):
    """What happens to slots that were missed while no scheduler ran."""

    LATEST = "latest", _("Run the latest only")
    ALL = "all", _("Run each, up to a limit")
    NONE = "none", _("Run none")


class Overlap(models.TextChoices):
    """What happens to a slot while the previous run has not finished."""

    ALLOW = "allow", _("Run both")
    SKIP = "skip", _("Skip the new run")
    CANCEL_PREVIOUS = "cancel_previous", _("Cancel the previous run")


class DisabledBy(models.TextChoices):
    """Why a schedule is disabled."""

    OPERATOR = "OPERATOR", _("An operator")
    CODE = "CODE", _("The code")
    END = "END", _("End time reached")
    TIMING = "TIMING", _("Invalid timing")


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    """Operations on schedules, by operators and the scheduler."""

    def update(self, **kwargs: Any) -> int:
        """Update the rows. If the values affect the next run, it is cleared, and a scheduler plans it again."""
        if "next_run_at" not in kwargs and (changed := kwargs.keys() & CLEARED_ON):
            cases = [When(**{name: kwargs[name] for name in changed}, then=F("next_run_at"))]
            if "jitter" in changed and "enabled" not in changed:
                # A run that waits for its former jitter is due now: a scheduler could not tell it from a missed one.
                cases.append(When(next_slot_at__lte=Now(), next_run_at__gt=Now(), then=F("next_slot_at")))
            kwargs["next_run_at"] = Case(*cases)
        count = super().update(**kwargs)
        if count and kwargs.keys() & {*PLAN_COLUMNS, "next_run_at"}:
            notify_schedules_changed_after_commit(self.db)
        return count

    update.alters_data = True  # type: ignore[attr-defined]  # templates must not call it

    def record_run(self, **kwargs: Any) -> int:
        """Update the rows as :meth:`update` does, for a scheduler, whose own writes need not wake the others."""
        return super().update(**kwargs)

    def bulk_create(self, *args: Any, **kwargs: Any) -> list[Schedule]:
        """Insert rows and notify schedulers, which plan their next runs."""
        rows = super().bulk_create(*args, **kwargs)
        if rows:
            notify_schedules_changed_after_commit(self.db)
        return rows

    def enable(self) -> int:
        """Enable them from their next slot on; return how many were disabled and have a slot left."""
        count, names = 0, names_of(self)
        for row in self.filter(enabled=False):
            row.enabled, row.next_run_at = True, None
            row.plan(database_now(self.db))
            if row.enabled:
                mine = self.all_rows().filter(pk=row.pk, enabled=False)
                count += mine.update(updated_at=Now(), **row.planned)
        log_operation("schedule.enable", count, schedule=names)
        return count

    def disable(self) -> int:
        """Disable them; return how many changed. Runs that were sent continue.

        The reason of those that are disabled already changes too, so that they stay disabled.
        """
        names = names_of(self)
        is_to_be = Q(enabled=True) | ~Q(disabled_by=DisabledBy.OPERATOR)
        count = self.filter(is_to_be)._disable(DisabledBy.OPERATOR)
        log_operation("schedule.disable", count, schedule=names)
        return count

    def _disable(self, by: str, **values: Any) -> int:
        """Disable them. The next slot stays, because an interval counts on from it once they are enabled."""
        return self.update(enabled=False, disabled_by=by, next_run_at=None, updated_at=Now(), **values)

    def declare(self, names: Collection[str], interval: float = 0.0) -> None:
        """Record that code declares these schedules now, unless that was recorded within ``interval`` seconds."""
        ordered = sorted(names)
        old = self.filter(Q(declared_at__lte=NowPlus(-interval)) | Q(declared_at__gt=Now()))
        for start in range(0, len(ordered), NAMES_PER_STATEMENT):
            old.filter(name__in=ordered[start : start + NAMES_PER_STATEMENT]).update(declared_at=Now())

    def disable_undeclared(self, after: float) -> list[str]:
        """Disable schedules that no code has declared for ``after`` seconds, by CODE; return their names.

        Code that declares one again enables it, unless an operator has disabled it.
        """
        gone = self.filter(declared_at__lt=NowPlus(-after))
        forgotten: dict[str, Any] = {"declared_at": None, "declared_enabled": None}
        gone.filter(enabled=False).update(**forgotten)
        names = gone.filter(enabled=True).order_by("name").values_list("name", flat=True)
        return [name for name in names if gone.filter(name=name, enabled=True)._disable(DisabledBy.CODE, **forgotten)]

    def forget_later_times(self) -> list[str]:
        """Let a scheduler plan those again that were sent or changed before the clock was set back; return their names.

        The clock of the database counts as set back if it is more than :data:`CLOCK_STEP` behind such a time.
        """
        limit = NowPlus(CLOCK_STEP.total_seconds())
        later = self.filter(Q(last_slot_at__gt=limit) | Q(updated_at__gt=limit))
        if names := list(later.order_by("name").values_list("name", flat=True)):
            last_slot_at = Case(When(last_slot_at__lte=limit, then=F("last_slot_at")))
            later.update(next_run_at=None, last_slot_at=last_slot_at, updated_at=Now())
        return names

    def disable_unreadable(self, why: str) -> int:
        """Disable schedules that can't be read or planned, and store why."""
        values: dict[str, Any] = {"next_run_at": None, "next_slot_at": None, "last_error": why, "updated_at": Now()}
        return self.filter(enabled=True).update(enabled=False, disabled_by=DisabledBy.TIMING, **values)

    def run_now(self) -> list[RunHandle]:
        """Send each of them now, enabled or not; return the handles. Their next runs do not change.

        Raises the errors of a send, with a note that names the schedule; those before it are sent.
        """
        handles: list[RunHandle] = []
        names = names_of(self)
        try:
            for row in self.order_by("pk"):
                handles.append(subscribers.run_schedule(row))  # noqa: PERF401  # on an error, those sent before are logged
        finally:
            log_operation("schedule.run", len(handles), schedule=names)
        return handles

    def served_by(self, backend: str, project: str) -> Self:
        """Enabled schedules that a scheduler of this backend and project sends."""
        return self.filter(enabled=True, backend=backend, source__in=["", project])

    def unplanned(self) -> Self:
        """Schedules without a planned next run."""
        return self.filter(next_run_at__isnull=True)

    def with_outdated_plan(self) -> Self:
        """Schedules whose next run was planned for another timing or time zone."""
        return self.next_up().filter(PLAN_IS_OUTDATED)

    def planned_for(self, run_at: datetime | None) -> Self:
        """Schedules whose next run is at ``run_at``, as read from a row; with None, those without one.

        SQLite stores times as text, with or without trailing zeros, so this compares a range.
        """
        if run_at is None:
            return self.unplanned()
        return self.filter(next_run_at__gt=run_at - TICK, next_run_at__lt=run_at + TICK)

    def next_up(self) -> Self:
        """Schedules with a planned next run, in that order."""
        return self.filter(next_run_at__isnull=False).order_by("next_run_at")

    def locked(self, *, skip: bool = True) -> Self:
        """These rows, locked as they are read; with ``skip``, without locked ones."""
        return self.select_for_update(skip_locked=skip, no_key=True)

    def all_rows(self) -> ScheduleQuerySet:
        """Return all schedules of the same database, without this queryset's filters."""
        return Schedule.objects.using(self.db)


class Schedule(models.Model):
    """A task, or a workflow, that is sent at each slot of a timing. A guarded update sends each slot once."""

    name = models.CharField(_("name"), max_length=255, unique=True)
    backend = models.CharField(_("backend"), max_length=64, default="default")
    task_name = models.CharField(_("task"), max_length=255, null=True, blank=True, help_text=_("The name of the task."))
    workflow_name = models.CharField(
        _("workflow"), max_length=255, null=True, blank=True, help_text=_("The definition key of the workflow.")
    )
    args = JSONField(_("arguments"), default=list, blank=True)
    kwargs = JSONField(_("keyword arguments"), default=dict, blank=True)
    options = JSONField(
        _("options"),
        default=dict,
        blank=True,
        help_text=_("Options of each call, e.g. queue_name, priority or timeout."),
    )

    timing = models.CharField(_("timing"), max_length=255, help_text=_("E.g. cron:0 9 * * MON-FRI or every:300."))
    timezone = models.CharField(
        _("time zone"), max_length=64, default=project_timezone, help_text=_("E.g. Europe/Berlin.")
    )
    enabled = models.BooleanField(_("enabled"), default=True)
    disabled_by = models.CharField(
        _("disabled by"), max_length=8, choices=DisabledBy.choices, default="", blank=True, editable=False
    )
    catch_up = models.CharField(_("missed runs"), max_length=6, choices=CatchUp.choices, default=CatchUp.LATEST)
    max_catch_up_runs = models.PositiveIntegerField(
        _("max missed runs"),
        default=DEFAULT_MAX_CATCH_UP,
        help_text=_("Only the latest missed runs, up to this number, are run."),
    )
    overlap = models.CharField(
        _("if the previous run has not finished"), max_length=15, choices=Overlap.choices, default=Overlap.ALLOW
    )
    jitter = models.FloatField(_("jitter"), default=0.0, help_text=_("Seconds: maximum random delay of each run."))
    skip_nonexistent = models.BooleanField(
        _("skip times that do not exist"),
        default=False,
        help_text=_("When clocks are set forward. Otherwise such a run starts right after the gap."),
    )
    start_at = DateTimeField(_("start at"), null=True, blank=True)
    end_at = DateTimeField(_("end at"), null=True, blank=True)
    source = models.CharField(
        _("source"),
        max_length=100,
        default="",
        blank=True,
        editable=False,
        help_text=_("Empty: created by an operator."),
    )
    # What the code declared last; None if it has no such schedule. While that is unchanged, the operator's choice wins.
    declared_enabled = models.BooleanField(_("enabled in code"), null=True, blank=True, editable=False)
    # When code declared it last; None if no code has such a schedule.
    declared_at = DateTimeField(null=True, blank=True, editable=False)

    next_run_at = DateTimeField(_("next run"), null=True, blank=True, editable=False)
    next_slot_at = DateTimeField(_("next slot"), null=True, blank=True, editable=False)
    # What the next run was planned for: if the row differs, it is planned again.
    planned_timing = models.CharField(max_length=255, default="", db_default="", blank=True, editable=False)
    planned_timezone = models.CharField(max_length=64, default="", db_default="", blank=True, editable=False)
    last_run_at = DateTimeField(_("last run"), null=True, blank=True, editable=False)
    last_slot_at = DateTimeField(_("last slot"), null=True, blank=True, editable=False)
    last_task_id = models.UUIDField(_("last task"), null=True, blank=True, editable=False)
    last_workflow_id = models.UUIDField(_("last workflow"), null=True, blank=True, editable=False)
    run_count = models.PositiveBigIntegerField(_("runs"), default=0, editable=False)
    last_error = models.TextField(_("last error"), default="", blank=True, editable=False)
    created_at = DateTimeField(_("created at"), db_default=Now(), editable=False)
    updated_at = DateTimeField(_("updated at"), db_default=Now(), editable=False)

    objects = ScheduleQuerySet.as_manager()

    class Meta:
        db_table = "horsies_schedules"
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        permissions = [
            ("enable_schedule", "Can enable schedule"),
            ("disable_schedule", "Can disable schedule"),
            ("run_now_schedule", "Can run schedule now"),
        ]
        indexes = [
            models.Index(fields=["backend", "next_run_at"], condition=Q(enabled=True), name="horsies_schedule_next"),
            models.Index(
                fields=["backend", "next_run_at"],
                condition=Q(enabled=True) & PLAN_IS_OUTDATED,
                name="horsies_schedule_replan",
            ),
            # For the admin's filters, each ordered by name.
            models.Index(fields=["disabled_by", "name"], condition=Q(enabled=False), name="horsies_schedule_disabled"),
            models.Index(fields=["name"], condition=~Q(last_error=""), name="horsies_schedule_failing"),
            models.Index(fields=["source", "name"], name="horsies_schedule_source"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(task_name__isnull=False, workflow_name__isnull=True)
                | Q(task_name__isnull=True, workflow_name__isnull=False),
                name="horsies_schedule_has_a_task_or_a_workflow",
            ),
            values_in_range(
                "schedule",
                "start_at end_at declared_at next_run_at next_slot_at last_run_at last_slot_at created_at "
                "updated_at enabled run_count last_task_id last_workflow_id",
                jitter=(0.0, float(MAX_JITTER)),
                max_catch_up_runs=(0, MAX_CATCH_UP),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save the row, and plan its next run if a column changes on which that depends.

        The scheduler's columns are saved only if ``update_fields`` names them: the row in the database has the newest.
        """
        alias = kwargs.get("using") or self._state.db or "default"
        with transaction.atomic(using=alias):
            rows = Schedule.objects.using(alias).filter(pk=self.pk).locked(skip=False)
            stored = None if self._state.adding else rows.first()
            self.updated_at = now = database_now(alias)
            names = {field.name for field in self._meta.concrete_fields if not field.primary_key}
            names = set(kwargs.get("update_fields") or names.difference(SCHEDULER_COLUMNS)) | {"updated_at"}
            if stored is not None:
                for name in set(SCHEDULER_COLUMNS) - names:
                    setattr(self, name, getattr(stored, name))
                kwargs["update_fields"] = names
            if stored is None or stored._plan_key != self._plan_key or (self.enabled and self.next_run_at is None):
                self.plan(now)
                names |= {*self.planned, "last_error"}
                notify_schedules_changed_after_commit(alias)
            super().save(*args, **kwargs)

    def clean(self) -> None:
        """Validate the schedule. Raises ValidationError with the problems of each field."""
        if problems := subscribers.schedule_problems(self):
            raise ValidationError(dict(problems))

    @property
    def slots(self) -> Slots:
        """Return its slots. Raises ValueError if its timing or time zone is invalid."""
        from ..core.schedule_patterns import parse
        from ..core.schedule_slots import Slots, parse_timezone

        slots = Slots(
            pattern=parse(self.timing),
            zone=parse_timezone(self.timezone),
            name=self.name,
            skip_nonexistent=self.skip_nonexistent,
            start_at=aware(self.start_at),
            end_at=aware(self.end_at),
            jitter=self.jitter,
        )
        next_slot = aware(self.next_slot_at)
        planned = slots.slot_of(aware(self.next_run_at), next_slot)
        return replace(slots, anchor=planned or aware(self.last_slot_at) or slots.start_at or next_slot)

    def plan(self, now: datetime) -> None:
        """Set the next run of an enabled schedule, after ``now`` by the database's clock.

        A run that waits for its jitter stays planned. The schedule is disabled if no slot is left, or if the timing is
        invalid.
        """
        run_at, self.next_run_at = aware(self.next_run_at), None
        if self.has_outdated_plan:
            self.next_slot_at = run_at = None
        if not self.enabled:
            self.disabled_by = self.disabled_by or DisabledBy.OPERATOR
            return
        self.disabled_by = ""
        try:
            slots, slot, last = self.slots, aware(self.next_slot_at), aware(self.last_slot_at)
            after = now if last is None or last > now + CLOCK_STEP else max(now, last)
            if slot is not None and slot <= after < max(run_at or slot, slots.due_at(slot)) and slots.is_within(slot):
                self.plan_for(slots, slot)
            else:
                self.plan_for(slots, slots.after(after))
        except (ValueError, OverflowError) as error:
            self.enabled, self.disabled_by, self.last_error = False, DisabledBy.TIMING, str(error)
            self.next_run_at = self.next_slot_at = None

    def plan_for(self, slots: Slots, slot: datetime | None) -> None:
        """Set the next run to a slot; None means that no slot is left, and disables it."""
        if slot is None:
            self.enabled, self.disabled_by = False, DisabledBy.END
        self.planned_timing, self.planned_timezone = self.timing, self.timezone
        self.next_slot_at = slot
        self.next_run_at = None if slot is None else slots.due_at(slot)

    @property
    def planned(self) -> dict[str, Any]:
        """The columns that :meth:`plan` sets, without the error."""
        names = ("next_run_at", "next_slot_at", "planned_timing", "planned_timezone", "enabled", "disabled_by")
        return {name: getattr(self, name) for name in names}

    @property
    def has_outdated_plan(self) -> bool:
        """Whether its next run was planned for another timing or time zone."""
        planned = self.planned_timing, self.planned_timezone
        return self.planned_timing != "" and planned != (self.timing, self.timezone)

    @property
    def last_run_id(self) -> Any:
        """The id of the last task or workflow that it sent."""
        return self.last_task_id if self.task_name is not None else self.last_workflow_id

    @property
    def _plan_key(self) -> tuple[Any, ...]:
        return (*(aware(at) if isinstance(at := getattr(self, name), datetime) else at for name in PLAN_COLUMNS),)
