"""Tasks: the rows of the queue."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from ..core.compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY
from ..core.ids import uuid7
from ..core.status import TASK_LIVE_STATES, TASK_TERMINAL_STATES, TaskStatus
from ..db.constraints import values_in_range
from ..db.fields import DateTimeField, JSONField
from ..db.now import Now
from ..db.row_key import RowRef
from .filters import HOLDS_UNIQUE_KEY, IS_HELD, IS_RELEASED
from .transitions import TaskQuerySet

# The column with the time at which a task entered the state.
_ENDED_AT = {
    TaskStatus.COMPLETED: "completed_at",
    TaskStatus.FAILED: "failed_at",
    TaskStatus.CANCELLED: "cancelled_at",
    TaskStatus.EXPIRED: "expired_at",
}


class Task(models.Model):
    """One call of a task. Only the transitions of :class:`TaskQuerySet` change ``status``."""

    id = models.UUIDField(_("id"), primary_key=True, default=uuid7, editable=False)
    task_name = models.CharField(_("task"), max_length=255, help_text=_("The name of the task."))
    queue_name = models.CharField(_("queue"), max_length=100, default="default")
    backend = models.CharField(_("backend"), max_length=64, default="default")
    priority = models.SmallIntegerField(_("priority"), default=0, help_text=_("Higher runs first."))
    args = JSONField(_("arguments"), default=list, blank=True)
    kwargs = JSONField(_("keyword arguments"), default=dict, blank=True)
    typed_payload = models.BooleanField(
        _("rich values"), default=False, help_text=_("Whether the values contain type tags.")
    )
    is_async = models.BooleanField(_("async"), default=False, help_text=_("Whether the task is a coroutine function."))

    status = models.CharField(_("state"), max_length=9, choices=TaskStatus.choices, default=TaskStatus.PENDING)
    deferred = models.BooleanField(
        _("deferred"),
        default=False,
        help_text=_("Excluded from the claim index until the task is due."),
    )
    claim = models.PositiveBigIntegerField(
        _("claim"), default=0, help_text=_("Incremented by each claim; the result of an older claim is ignored.")
    )
    claimed_by_worker_id = models.CharField(_("worker"), max_length=64, null=True, blank=True)

    sent_at = DateTimeField(_("sent at"), db_default=Now())
    enqueued_at = DateTimeField(_("enqueued at"), db_default=Now(), help_text=_("When it may be claimed."))
    released_at = DateTimeField(
        _("released at"), null=True, blank=True, help_text=_("When its limit had room, or its workflow was resumed.")
    )
    claimed_at = DateTimeField(_("claimed at"), null=True, blank=True)
    started_at = DateTimeField(_("started at"), null=True, blank=True)
    completed_at = DateTimeField(_("completed at"), null=True, blank=True)
    failed_at = DateTimeField(_("failed at"), null=True, blank=True)
    cancelled_at = DateTimeField(_("cancelled at"), null=True, blank=True)
    expired_at = DateTimeField(_("expired at"), null=True, blank=True)
    next_retry_at = DateTimeField(_("next retry at"), null=True, blank=True)
    run_after = DateTimeField(_("run after"), null=True, blank=True, help_text=_("As requested by the sender."))
    good_until = DateTimeField(_("deadline"), null=True, blank=True)

    attempt = models.PositiveIntegerField(_("attempt"), default=0, help_text=_("The latest attempt that started."))
    retry_count = models.PositiveSmallIntegerField(_("retries"), default=0)
    max_retries = models.PositiveSmallIntegerField(_("max retries"), default=0)
    retry_policy = JSONField(_("retry policy"), null=True, blank=True)
    timeout = models.FloatField(_("timeout"), null=True, blank=True, help_text=_("Seconds."))
    retention = models.DurationField(_("retention"), null=True, blank=True, help_text=_("Of completed tasks."))
    retention_by_state = JSONField(
        _("retention by state"),
        null=True,
        blank=True,
        help_text=_("Of failed, cancelled and expired tasks, in seconds."),
    )
    unique_key = models.CharField(_("unique key"), max_length=255, null=True, blank=True)
    unique_until = models.CharField(
        _("unique until"), max_length=8, null=True, blank=True, help_text=_("Empty: until the task has finished.")
    )
    unique_expires_at = DateTimeField(
        _("unique no longer than"), null=True, blank=True, help_text=_("Afterwards another task may use the key.")
    )
    limit_key = models.CharField(_("limit key"), max_length=255, null=True, blank=True)
    # The default is in the database too, for processes of the previous release, which insert without this column.
    blocked = models.BooleanField(
        _("blocked"), default=False, db_default=False, help_text=_("Its limit is reached; the task is waiting.")
    )
    group_key = models.CharField(
        _("group"),
        max_length=255,
        null=True,
        blank=True,
        help_text=_("Calls with the same key are added until the task is first claimed."),
    )
    item_count = models.PositiveIntegerField(
        _("grouped calls"), null=True, blank=True, help_text=_("Number of calls that the task receives as a list.")
    )
    metadata = JSONField(_("metadata"), null=True, blank=True)
    about_model = models.CharField(
        _("about model"), max_length=201, null=True, blank=True, help_text=_("The model of the row it is about.")
    )
    about_id = models.CharField(
        _("about row"), max_length=255, null=True, blank=True, help_text=_("The key of that row; JSON if composite.")
    )
    schedule_id = models.PositiveBigIntegerField(
        _("schedule"), null=True, blank=True, help_text=_("The schedule that sent the task.")
    )
    workflow_id = models.UUIDField(
        _("workflow"), null=True, blank=True, help_text=_("The root workflow, if the task is a node of a workflow.")
    )
    rerun_of_id = models.UUIDField(
        _("run again from"), null=True, blank=True, help_text=_("The task that was run again with other arguments.")
    )
    has_inputs = models.BooleanField(
        _("has inputs"), default=False, help_text=_("Other nodes or grouped calls provide arguments.")
    )
    progress = JSONField(_("progress"), null=True, blank=True, help_text=_("As reported by the task."))
    checkpoint = JSONField(_("checkpoint"), null=True, blank=True, help_text=_("Saved for the next attempt."))
    waits_for = models.CharField(
        _("waits for"), max_length=300, null=True, blank=True, help_text=_("Such as event:approved. Its slot is free.")
    )
    unknown_to = JSONField(
        _("unknown to"),
        null=True,
        blank=True,
        help_text=_("Code versions whose workers did not know the task, and how often each returned it."),
    )
    kept_until = DateTimeField(
        _("kept until"), null=True, blank=True, help_text=_("The reaper deletes the task then. Empty: never.")
    )

    result = JSONField(_("result"), null=True, blank=True)
    # While a task waits for a retry, the code and the error group of its last attempt.
    error_code = models.CharField(_("error code"), max_length=100, null=True, blank=True)
    fingerprint = models.CharField(_("error group"), max_length=12, null=True, blank=True)

    objects = TaskQuerySet.as_manager()

    class Meta:
        db_table = "horsies_tasks"
        verbose_name = _("task")
        verbose_name_plural = _("tasks")
        permissions = [
            ("retry_task", "Can retry task"),
            ("cancel_task", "Can cancel task"),
            ("run_now_task", "Can run task now"),
            ("move_task", "Can change queue and priority of task"),
            ("rerun_task", "Can run task again with other arguments"),
            ("send_event_task", "Can send event to task"),
        ]
        # Each index costs every task up to three entries in its life, so each is partial and has one reader.
        indexes = [
            models.Index(
                "is_async",
                "queue_name",
                F("priority").desc(),
                "enqueued_at",
                "id",
                condition=Q(status=TaskStatus.PENDING, deferred=False),
                name="horsies_task_claim",
            ),
            models.Index(
                fields=["enqueued_at"],
                condition=Q(status=TaskStatus.PENDING, deferred=True, blocked=False),
                name="horsies_task_deferred",
            ),
            models.Index(
                fields=["claimed_by_worker_id"],
                condition=IS_HELD,
                name="horsies_task_held",
            ),
            models.Index(
                fields=["good_until"],
                condition=Q(status=TaskStatus.PENDING, good_until__isnull=False),
                name="horsies_task_deadline",
            ),
            models.Index(
                fields=["status", "id"],
                condition=Q(status__in=[TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED]),
                name="horsies_task_unsuccessful",
            ),
            models.Index(
                "limit_key",
                F("priority").desc(),
                "enqueued_at",
                "id",
                condition=Q(status=TaskStatus.PENDING, blocked=True),
                name="horsies_task_blocked",
            ),
            models.Index(fields=["limit_key"], condition=IS_RELEASED, name="horsies_task_released"),
            models.Index(
                fields=["schedule_id", "id"],
                condition=Q(schedule_id__isnull=False),
                name="horsies_task_schedule",
            ),
            # At each slot, a schedule checks whether its last run is still live.
            models.Index(
                fields=["schedule_id"],
                condition=Q(status__in=sorted(TASK_LIVE_STATES), schedule_id__isnull=False),
                name="horsies_task_run_of_schedule",
            ),
            # Failed tasks and retries: a task that succeeds at once is never in it.
            models.Index(fields=["id"], condition=Q(error_code__isnull=False), name="horsies_task_error"),
            models.Index(
                fields=["fingerprint", "id"],
                condition=Q(fingerprint__isnull=False),
                name="horsies_task_error_group",
            ),
            models.Index(
                fields=["rerun_of_id", "id"],
                condition=Q(rerun_of_id__isnull=False),
                name="horsies_task_rerun_of",
            ),
            models.Index(
                fields=["waits_for", "id"],
                condition=Q(waits_for__isnull=False),
                name="horsies_task_waits_for",
            ),
            models.Index(
                fields=["about_model", "about_id", "id"],
                condition=Q(about_model__isnull=False),
                name="horsies_task_about",
            ),
            models.Index(
                fields=["kept_until"],
                condition=Q(kept_until__isnull=False),
                name="horsies_task_kept_until",
            ),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=TaskStatus.values), name="horsies_task_status_is_known"),
            models.CheckConstraint(
                condition=Q(priority__range=(TASK_MIN_PRIORITY, TASK_MAX_PRIORITY)),
                name="horsies_task_priority_is_in_range",
            ),
            values_in_range(
                "task",
                "sent_at enqueued_at released_at claimed_at started_at completed_at failed_at cancelled_at "
                "expired_at next_retry_at run_after good_until unique_expires_at kept_until timeout retention claim "
                "attempt retry_count max_retries item_count schedule_id id workflow_id rerun_of_id",
            ),
            *(
                models.CheckConstraint(
                    condition=~Q(status=status) | Q(**{f"{column}__isnull": False}),
                    name=f"horsies_{status.lower()}_task_has_{column}",
                )
                for status, column in _ENDED_AT.items()
            ),
            models.UniqueConstraint(
                fields=["unique_key"],
                condition=HOLDS_UNIQUE_KEY,
                name="horsies_live_task_has_its_key_alone",
            ),
            # A group is open until its first claim; the claim number only grows.
            models.UniqueConstraint(
                fields=["task_name", "queue_name", "group_key"],
                condition=Q(status=TaskStatus.PENDING, claim=0, group_key__isnull=False),
                name="horsies_key_has_one_open_group",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task_name} ({self.pk})"

    @property
    def claimed(self) -> bool:
        """Whether a worker holds the task."""
        return self.status in (TaskStatus.CLAIMED, TaskStatus.RUNNING)

    @property
    def about_row(self) -> RowRef | None:
        """The row that it is about, which may be gone; None if it is about none."""
        return None if self.about_model is None else RowRef(self.about_model, self.about_id or "")

    @property
    def due_at(self) -> datetime:
        """When the task could first run: in SQL :data:`~.claim.query.DUE_AT`."""
        return max(self.enqueued_at, self.released_at or self.enqueued_at)

    @property
    def finished_at(self) -> Any:
        """When the task ended; None while it is live."""
        return getattr(self, _ENDED_AT[TaskStatus(self.status)]) if self.status in TASK_TERMINAL_STATES else None


class Overview(Task):
    """A proxy that gives the admin's overview page a place in the index. Users who may see tasks may see it."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("overview")
        verbose_name_plural = _("overview")
