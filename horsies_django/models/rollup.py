"""Roll-ups: attempts counted by minute, by hour and for all time, so that no chart or metric reads the attempts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..core.status import AttemptOutcome
from ..db.constraints import values_in_range
from ..db.fields import DateTimeField, JSONField


class RollupSpan(models.TextChoices):
    """The length of time that one roll-up covers."""

    MINUTE = "M", _("Minute")
    HOUR = "H", _("Hour")
    #: From the first roll-up on. Never pruned, so these counts only grow.
    TOTAL = "T", _("Total")


#: The minutes in each span that has an end.
MINUTES: Final = {RollupSpan.MINUTE: 1, RollupSpan.HOUR: 60}


def start_of(minute: int) -> datetime:
    """Return the time of a :class:`~horsies_django.db.expressions.MinuteOf`."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)


def minute_of(moment: datetime) -> int:
    """Return the minutes from 1970 to a time, as :class:`~horsies_django.db.expressions.MinuteOf` does."""
    return (moment - start_of(0)) // timedelta(minutes=1)


#: The range of sums of seconds.
SUM_RANGE: Final = (0.0, 1e18)


class Rollup(models.Model):
    """The number of attempts of one task in one queue that ended in one minute or hour with the same outcome.

    ``waits`` and ``runs`` are histograms: they map a bucket's number, as text, to its attempts. ``wait_seconds`` and
    ``run_seconds`` are the sums of what is in them. Failures are counted by error code and error group, too. A total
    starts at 1970 and has neither. One without names counts the attempts of all pairs of queue and task beyond a limit.
    """

    id = models.BigAutoField(primary_key=True)
    span = models.CharField(_("span"), max_length=1, choices=RollupSpan.choices)
    start = DateTimeField(_("start"))
    queue_name = models.CharField(_("queue"), max_length=100)
    task_name = models.CharField(_("task"), max_length=255)
    outcome = models.CharField(_("outcome"), max_length=14, choices=AttemptOutcome.choices)
    will_retry = models.BooleanField(_("will retry"), default=False)
    error_code = models.CharField(_("error code"), max_length=100, blank=True)
    # The defaults are in the database too, for processes of the previous release.
    fingerprint = models.CharField(_("error group"), max_length=12, blank=True, default="", db_default="")
    count = models.PositiveIntegerField(_("attempts"), default=0)
    waits = JSONField(_("waits"), default=dict)
    runs = JSONField(_("runs"), default=dict)
    wait_seconds = models.FloatField(_("seconds waited"), default=0.0, db_default=0.0)
    run_seconds = models.FloatField(_("seconds run"), default=0.0, db_default=0.0)

    class Meta:
        db_table = "horsies_rollups"
        verbose_name = _("roll-up")
        verbose_name_plural = _("roll-ups")
        # Covers every column that a chart needs, so that it never reads the histograms.
        indexes = [
            models.Index(
                fields=["span", "start", "outcome", "will_retry", "queue_name", "task_name", "count", "run_seconds"],
                name="horsies_rollup_series",
            ),
            models.Index(
                fields=["fingerprint", "span", "start"],
                condition=~models.Q(fingerprint=""),
                name="horsies_rollup_error_group",
            ),
        ]
        constraints = [
            values_in_range(
                "rollup", "start count will_retry waits runs", wait_seconds=SUM_RANGE, run_seconds=SUM_RANGE
            ),
            models.UniqueConstraint(
                fields=[
                    "span",
                    "start",
                    "queue_name",
                    "task_name",
                    "outcome",
                    "will_retry",
                    "error_code",
                    "fingerprint",
                ],
                name="horsies_rollup_counts_alone",
            ),
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
