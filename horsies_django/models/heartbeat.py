"""Heartbeats: the sign that somebody still holds a task."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ..states import BeatRole


class HeartbeatQuerySet(models.QuerySet["Heartbeat"]):
    """Beats are written in bulk and never changed."""

    def beat(self, task_ids: Iterable[UUID], role: BeatRole, sender_id: str, hostname: str, pid: int) -> None:
        """Write one beat for each task (S3-04, S3-05)."""
        self.bulk_create(
            [
                Heartbeat(task_id=task_id, role=role, sender_id=sender_id, hostname=hostname, pid=pid)
                for task_id in task_ids
            ],
            batch_size=1_000,
        )


class Heartbeat(models.Model):
    """One beat of a worker for one task. A row's first beat is its claim or its start, which no row repeats."""

    id = models.BigAutoField(primary_key=True)
    task = models.ForeignKey(
        "horsies_django.Task", models.CASCADE, db_index=False, related_name="heartbeats", verbose_name=_("task")
    )
    role = models.CharField(_("role"), max_length=7, choices=BeatRole.choices)
    sender_id = models.CharField(_("sender"), max_length=64)
    sent_at = models.DateTimeField(_("sent at"), db_default=Now())
    hostname = models.CharField(_("hostname"), max_length=255)
    pid = models.PositiveIntegerField(_("process id"))

    objects = HeartbeatQuerySet.as_manager()

    class Meta:
        db_table = "horsies_heartbeats"
        verbose_name = _("heartbeat")
        verbose_name_plural = _("heartbeats")
        indexes = [models.Index(fields=["task", "role", "-sent_at"], name="horsies_latest_beat")]

    def __str__(self) -> str:
        return f"{self.role} {self.task_id}"
