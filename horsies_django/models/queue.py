"""Queues, as far as they are more than a name."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..waking import ANY_QUEUE, wake_after_commit


class QueueQuerySet(models.QuerySet["Queue"]):
    """What an operator may do to queues."""

    def named(self, name: str) -> QueueQuerySet:
        """Return the row of a queue, which is made if there is none yet."""
        self.bulk_create([Queue(name=name)], ignore_conflicts=True)
        return self.filter(name=name)

    def pause(self) -> int:
        """Let workers claim nothing more from these queues; return how many were not paused. What runs goes on."""
        return self.filter(paused=False).update(paused=True)

    def resume(self) -> int:
        """Let workers claim from these queues again, at once; return how many were paused."""
        count = self.filter(paused=True).update(paused=False)
        if count:
            wake_after_commit(self.db, ANY_QUEUE)
        return count


class Queue(models.Model):
    """What can be said of a queue at run time. A queue without a row runs freely."""

    name = models.CharField(_("name"), max_length=100, unique=True)
    paused = models.BooleanField(_("paused"), default=False, help_text=_("Workers claim nothing from a paused queue."))
    max_concurrency = models.PositiveIntegerField(
        _("max concurrency"),
        null=True,
        blank=True,
        help_text=_("At most this many of its tasks run at once, in all workers together. Empty: no limit."),
    )
    priority = models.SmallIntegerField(
        _("priority"), null=True, blank=True, help_text=_("Queues with a higher one come first. Empty: as set up.")
    )
    weight = models.PositiveSmallIntegerField(
        _("weight"), null=True, blank=True, help_text=_("Its share beside queues of the same rank. Empty: as set up.")
    )
    rate_limit = models.CharField(
        _("rate limit"), max_length=50, null=True, blank=True, help_text=_("So many starts a time, like 100/m.")
    )
    tokens = models.FloatField(_("tokens"), null=True, blank=True, editable=False)
    refilled_at = models.DateTimeField(_("refilled at"), null=True, blank=True, editable=False)
    retention = models.DurationField(
        _("retention"), null=True, blank=True, help_text=_("How long its ended tasks are kept. Empty: as set up.")
    )

    objects = QueueQuerySet.as_manager()

    class Meta:
        db_table = "horsies_queues"
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        permissions = [("pause_queue", "Can pause queue"), ("resume_queue", "Can resume queue")]

    def __str__(self) -> str:
        return self.name
