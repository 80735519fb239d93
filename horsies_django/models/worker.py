"""Workers: who is there to claim."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _


class WorkerQuerySet(models.QuerySet["Worker"]):
    """The life of a worker's row."""

    def register(self, worker_id: str, name: str, hostname: str, pid: int) -> None:
        """Note that a process has started. Its id is new each time, whatever its name."""
        self.bulk_create([Worker(id=worker_id, name=name, hostname=hostname, pid=pid)], ignore_conflicts=True)

    def beat(self, worker_id: str) -> bool:
        """Note that the worker lives, and return whether its row is still there."""
        return self.filter(pk=worker_id).update(last_beat_at=Now()) == 1

    def leave(self, worker_id: str) -> None:
        """Note that the worker has stopped."""
        self.filter(pk=worker_id).delete()


class Worker(models.Model):
    """One process that claims tasks. Nothing refers to this row: recovery goes by the tasks and their beats alone."""

    id = models.CharField(_("id"), primary_key=True, max_length=64)
    name = models.CharField(_("name"), max_length=24, blank=True)
    hostname = models.CharField(_("hostname"), max_length=255)
    pid = models.PositiveIntegerField(_("process id"))
    backend = models.CharField(_("backend"), max_length=64, default="default")
    version = models.CharField(_("version"), max_length=32, blank=True)
    queues = models.JSONField(_("queues"), default=list, blank=True, help_text=_("Those it serves. Empty: any."))
    excluded_queues = models.JSONField(_("excluded queues"), default=list, blank=True)
    threads = models.PositiveIntegerField(_("threads"), null=True)
    async_slots = models.PositiveIntegerField(_("async slots"), null=True)
    started_at = models.DateTimeField(_("started at"), db_default=Now())
    last_beat_at = models.DateTimeField(_("last beat at"), db_default=Now())
    memory = models.PositiveBigIntegerField(_("memory"), null=True, help_text=_("Bytes, as of its last beat."))
    stop_requested_at = models.DateTimeField(
        _("stop requested at"), null=True, blank=True, help_text=_("It stops as at SIGTERM, at its next beat.")
    )

    objects = WorkerQuerySet.as_manager()

    class Meta:
        db_table = "horsies_workers"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        permissions = [("stop_worker", "Can stop worker")]

    def __str__(self) -> str:
        return self.id
