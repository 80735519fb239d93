"""Roll-ups: attempts counted by minute and hour, so that the cost of a chart does not grow with the table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from ..core.status import AttemptOutcome
from ..db.fields import DateTimeField, JSONField


class RollupSpan(models.TextChoices):
    """The length of time that one roll-up covers."""

    MINUTE = "M", _("Minute")
    HOUR = "H", _("Hour")


#: The minutes in each span.
MINUTES: Final = {RollupSpan.MINUTE: 1, RollupSpan.HOUR: 60}


def start_of(minute: int) -> datetime:
    """Return the time of a :class:`~horsies_django.db.expressions.MinuteOf`, naive unless ``USE_TZ``."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)
    return moment if settings.USE_TZ else moment.replace(tzinfo=None)


class Rollup(models.Model):
    """The number of attempts of one task in one queue that ended in one minute or hour with the same outcome.

    ``waits`` and ``runs`` are histograms: they map a bucket's number, as text, to its attempts.
    """

    id = models.BigAutoField(primary_key=True)
    span = models.CharField(_("span"), max_length=1, choices=RollupSpan.choices)
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
        # Covers every column that a chart needs, so that it never reads the histograms.
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
    """The position up to which something has been read. A reader locks the row first, so only one reads on."""

    name = models.CharField(_("name"), primary_key=True, max_length=100)
    position = models.PositiveBigIntegerField(_("position"), default=0)

    class Meta:
        db_table = "horsies_watermarks"
        verbose_name = _("watermark")
        verbose_name_plural = _("watermarks")

    def __str__(self) -> str:
        return f"{self.name}: {self.position}"
