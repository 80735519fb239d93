"""Queues, as far as they are more than a name."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


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

    class Meta:
        db_table = "horsies_queues"
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        permissions = [("pause_queue", "Can pause queue"), ("resume_queue", "Can resume queue")]

    def __str__(self) -> str:
        return self.name
