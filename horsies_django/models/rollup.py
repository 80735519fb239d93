"""Roll-ups: attempts counted by time, so that a chart costs no more when millions are kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from ..core.status import AttemptOutcome
from .fields import DateTimeField, JSONField


class Span(models.TextChoices):
    """How much time a roll-up counts together."""

    MINUTE = "M", _("Minute")
    HOUR = "H", _("Hour")


#: How many minutes a span has.
MINUTES: Final = {Span.MINUTE: 1, Span.HOUR: 60}


def start_of(minute: int) -> datetime:
    """Return the time of a :class:`~horsies_django.db.expressions.MinuteOf`, as Django has the times of a column."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)
    return moment if settings.USE_TZ else moment.replace(tzinfo=None)


class Rollup(models.Model):
    """The attempts of one task in one queue that came to the same in one minute or hour, by the time of their end.

    ``waits`` and ``runs`` are histograms: a bucket's number, as text, to the attempts in it.
    """

    id = models.BigAutoField(primary_key=True)
    span = models.CharField(_("span"), max_length=1, choices=Span.choices)
    start = DateTimeField(_("start"))
    queue_name = models.CharField(_("queue"), max_length=100)
    task_name = models.CharField(_("task"), max_length=255)
    outcome = models.CharField(_("outcome"), max_length=14, choices=AttemptOutcome.choices)
    will_retry = models.BooleanField(_("will retry"), default=False)
    error_code = models.CharField(_("error code"), max_length=100, blank=True)
    count = models.PositiveIntegerField(_("attempts"), default=0)
    waits = JSONField(_("waits"), default=dict)
    runs = JSONField(_("runs"), default=dict)

    class Meta:
        db_table = "horsies_rollups"
        verbose_name = _("roll-up")
        verbose_name_plural = _("roll-ups")
        # All that a chart is drawn from, so that it need not read the rows with their histograms.
        indexes = [
            models.Index(fields=["span", "start", "outcome", "will_retry", "count"], name="horsies_rollup_series")
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["span", "start", "queue_name", "task_name", "outcome", "will_retry", "error_code"],
                name="horsies_rollup_counts_alone",
            )
        ]

    def __str__(self) -> str:
        return f"{self.start} {self.task_name} {self.outcome}: {self.count}"


class Watermark(models.Model):
    """How far something has been read. Who locks it reads on alone."""

    name = models.CharField(_("name"), primary_key=True, max_length=100)
    position = models.PositiveBigIntegerField(_("position"), default=0)

    class Meta:
        db_table = "horsies_watermarks"
        verbose_name = _("watermark")
        verbose_name_plural = _("watermarks")

    def __str__(self) -> str:
        return f"{self.name}: {self.position}"
