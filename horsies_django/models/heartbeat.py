"""Heartbeats: the sign that a worker still holds a task."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Case, F, Value, When
from django.utils.translation import gettext_lazy as _

from ..core.status import BeatRole, TaskStatus
from ..db.constraints import values_in_range
from ..db.fields import DateTimeField
from ..db.now import Now
from ..db.statements import Statement


class HeartbeatQuerySet(models.QuerySet["Heartbeat"]):
    """Heartbeats are written in bulk and never changed."""

    def beat(self, held: models.QuerySet[Any], sender_id: str, hostname: str, pid: int) -> None:
        """Write one heartbeat for each of these tasks, which a worker holds."""
        is_running = When(status=TaskStatus.RUNNING, then=Value(BeatRole.RUNNER.value))
        columns = {
            "task_id": F("pk"),
            "role": Case(is_running, default=Value(BeatRole.CLAIMER.value)),
            "sender_id": Value(sender_id),
            "sent_at": Now(),
            "hostname": Value(hostname),
            "pid": Value(pid),
        }
        Statement.insert(self.model, held, columns).run(held.db)


class Heartbeat(models.Model):
    """One heartbeat of a worker for one task. The first is the claim or the start, which the task's row has."""

    id = models.BigAutoField(primary_key=True)
    # No constraint: rows are made from those of their tasks and deleted before them; the check would double the cost.
    task = models.ForeignKey(
        "horsies_django.Task",
        models.CASCADE,
        db_constraint=False,
        db_index=False,
        related_name="heartbeats",
        verbose_name=_("task"),
    )
    role = models.CharField(_("role"), max_length=7, choices=BeatRole.choices)
    sender_id = models.CharField(_("sender"), max_length=64)
    sent_at = DateTimeField(_("sent at"), db_default=Now())
    hostname = models.CharField(_("hostname"), max_length=255)
    pid = models.PositiveIntegerField(_("process id"))

    objects = HeartbeatQuerySet.as_manager()

    class Meta:
        db_table = "horsies_heartbeats"
        verbose_name = _("heartbeat")
        verbose_name_plural = _("heartbeats")
        indexes = [models.Index(fields=["task", "role", "-sent_at"], name="horsies_latest_beat")]
        constraints = [
            values_in_range("heartbeat", "sent_at pid"),
        ]

    def __str__(self) -> str:
        return f"{self.role} {self.task_id}"
