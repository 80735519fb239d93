"""Queues that operators have paused or given limits."""

from __future__ import annotations

from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..core.limits import TOKEN_RANGE
from ..core.operations import log_operation, names_of
from ..core.queue_policy import COLUMNS, parse_policy
from ..db.constraints import values_in_range
from ..db.fields import DateTimeField, JSONField
from ..db.notifications import ANY_QUEUE, wake_after_commit

#: Rows with more than a pause. They are few; each poll of a worker checks whether there are any.
HAS_RULES: Final = (
    Q(max_concurrency__isnull=False)
    | Q(rate_limit__isnull=False)
    | Q(priority__isnull=False)
    | Q(weight__isnull=False)
    | Q(retention__isnull=False)
)

#: The error beside the field of an invalid value.
ALLOWED: Final[dict[str, Any]] = {
    "max_concurrency": _("Allowed: a whole number from 0 (no task starts) to 1000000 (no limit)."),
    "rate_limit": _("Allowed: a number, a slash and s, m, h or d, e.g. 100/m; with a burst: 100/m, 10; or none."),
    "priority": _("Allowed: a whole number from -100 to 100."),
    "weight": _("Allowed: a whole number from 1 to 1000."),
    "retention": _("Allowed: a duration from 0 (deleted immediately)."),
    "retention_by_state": _('Allowed: an object with failed, cancelled or expired: seconds, "30d", 0 or "forever".'),
}


class QueueQuerySet(models.QuerySet["Queue"]):
    """Operator actions on queues, and the locks of workers."""

    def named(self, name: str) -> QueueQuerySet:
        """Return the row of a queue; create it if there is none."""
        self.bulk_create([Queue(name=name)], ignore_conflicts=True)
        return self.filter(name=name)

    def update(self, **values: Any) -> int:
        """Update the rows and, if that changes a rule or a pause, wake workers after the commit."""
        count = super().update(**values)
        if count and values.keys() & {"paused", *COLUMNS}:
            wake_after_commit(self.db, ANY_QUEUE)
        return count

    def pause(self) -> int:
        """Stop claims from these queues; return how many were not paused. Running tasks continue."""
        return self._update_and_log("queue.pause", self.filter(paused=False), paused=True)

    def resume(self) -> int:
        """Resume claims from these queues at once; return how many were paused."""
        return self._update_and_log("queue.resume", self.filter(paused=True), paused=False)

    def set(self, **rules: object) -> int:
        """Set rules of these queues, for all workers, within a second; return the number of queues.

        The rules are ``max_concurrency``, ``rate_limit``, ``priority``, ``weight`` and ``retention``; None means the
        value of the settings. A plain ``retention`` is for completed tasks, a dict sets it by state. Raises ValueError,
        which names the rule, its value and what is allowed.

        >>> Queue.objects.named("emails").set(max_concurrency=5, rate_limit="100/m")  # doctest: +SKIP
        1
        """
        return self._update_and_log("queue.set", self, **parse_policy(rules))

    def _update_and_log(self, act: str, rows: QueueQuerySet, **values: Any) -> int:
        """Update some of the rows, log the operator action, and return how many."""
        names = names_of(self)
        count = rows.update(**values)
        log_operation(
            act, count, queue=names, **{name: str(value) for name, value in values.items() if name != "paused"}
        )
        return count

    def with_rules(self) -> QueueQuerySet:
        """Rows with rules, not just a pause."""
        return self.filter(HAS_RULES)

    def lock(self, *, skip: bool = True) -> QueueQuerySet:
        """Lock the rows; with ``skip``, leave out locked ones.

        SQLite has no row locks: there one transaction writes at a time.
        """
        return self.select_for_update(skip_locked=skip, no_key=True)


class Queue(models.Model):
    """The rules of a queue that operators set at run time. Without a row, or a value, the settings apply."""

    name = models.CharField(_("name"), max_length=100, unique=True)
    paused = models.BooleanField(_("paused"), default=False, help_text=_("Workers claim nothing from a paused queue."))
    max_concurrency = models.PositiveIntegerField(
        _("max concurrency"),
        null=True,
        blank=True,
        help_text=_("Maximum number of tasks in progress, in all workers together; 0: none."),
    )
    priority = models.SmallIntegerField(
        _("priority"),
        null=True,
        blank=True,
        help_text=_("With strict order, queues with a higher priority come first."),
    )
    weight = models.PositiveSmallIntegerField(
        _("weight"),
        null=True,
        blank=True,
        help_text=_("With weighted order, the share of this queue relative to the others."),
    )
    rate_limit = models.CharField(
        _("rate limit"),
        max_length=50,
        null=True,
        blank=True,
        help_text=_("Maximum rate at which tasks start, e.g. 100/m; none: no limit."),
    )
    #: The tokens of the rate limit at the last claim, by the database's clock.
    tokens = models.FloatField(_("tokens"), null=True, blank=True, editable=False)
    refilled_at = DateTimeField(_("refilled at"), null=True, blank=True, editable=False)
    retention = models.DurationField(
        _("retention"),
        null=True,
        blank=True,
        help_text=_("How long completed tasks are kept: days hours:minutes:seconds."),
    )
    retention_by_state = JSONField(
        _("retention by state"),
        null=True,
        blank=True,
        help_text=_('How long failed, cancelled and expired tasks are kept, e.g. {"failed": "30d", "cancelled": 0}.'),
    )

    objects = QueueQuerySet.as_manager()

    class Meta:
        db_table = "horsies_queues"
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        permissions = [("pause_queue", "Can pause queue"), ("resume_queue", "Can resume queue")]
        indexes = [models.Index(fields=["name"], condition=HAS_RULES, name="horsies_queue_has_rules")]
        constraints = [
            values_in_range("queue", "refilled_at retention max_concurrency priority weight", tokens=TOKEN_RANGE),
        ]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save it, and wake workers after the commit."""
        super().save(*args, **kwargs)
        wake_after_commit(self._state.db or DEFAULT_DB_ALIAS, ANY_QUEUE)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Delete it, and wake workers after the commit."""
        alias = kwargs.get("using") or self._state.db or DEFAULT_DB_ALIAS
        deleted = super().delete(*args, **kwargs)
        wake_after_commit(alias, ANY_QUEUE)
        return deleted

    def clean(self) -> None:
        """Validate the rules. Raises ValidationError that names, for each field, what is allowed."""
        self.rate_limit = self.rate_limit or None
        wrong = {}
        for name, rule in COLUMNS.items():
            try:
                setattr(self, name, rule.parse(getattr(self, name)))
            except ValueError:
                wrong[name] = ALLOWED[name]
        if wrong:
            raise ValidationError(wrong)
