"""Limits by key: how many tasks with a key may run at once, and how many may start in a time."""

from __future__ import annotations

import logging
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..core.limits import CLOCK_STEP, LENGTH, TOKEN_RANGE, LimitTerms, Rate, declared_terms
from ..core.operations import log_operation, names_of
from ..core.queue_policy import COLUMNS, NO_LIMIT, NO_RATE, parse_policy
from ..db.constraints import values_in_range
from ..db.expressions import NowPlus
from ..db.fields import DateTimeField
from ..db.notifications import ANY_QUEUE, wake_after_commit
from ..db.now import Now
from .filters import TaskFilterQuerySet
from .queue import ALLOWED

logger = logging.getLogger("horsies_django.worker")

#: Seconds after which a limit without tasks is deleted.
FORGET_AFTER: Final = 86_400.0

NOT_OVERRIDDEN: Final = Q(max_concurrency_override=None, rate_override=None)

#: Limits that one transaction checks.
FORGET_BATCH: Final = 500


class LimitQuerySet(models.QuerySet["Limit"]):
    """Limits, locked, due and forgotten."""

    def lock(self) -> LimitQuerySet:
        """Lock the rows that no other transaction has locked, and read the database's clock with them."""
        locked: LimitQuerySet = self.select_for_update(skip_locked=True).annotate(clock=Now())
        return locked

    def override(self, *, max_concurrency: int | None, rate: str | None) -> int:
        """Override what the tasks of these limits declare; return the number of limits. None removes an override.

        The values are those of a queue: a ``max_concurrency`` of 0 stops the tasks, 1,000,000 is no limit, and so is a
        ``rate`` of "none". Raises ValueError, which names the value and what is allowed.
        """
        keys = names_of(self, "key")
        terms = parse_policy({"max_concurrency": max_concurrency, "rate_limit": rate})
        count = self.update(
            max_concurrency_override=terms["max_concurrency"], rate_override=terms["rate_limit"], next_at=Now()
        )
        wake_after_commit(self.db, ANY_QUEUE)
        log_operation("limit.override", count, limit=keys, **{name: str(value) for name, value in terms.items()})
        return count

    def due(self) -> LimitQuerySet:
        """Limits whose next check is due."""
        return self.filter(next_at__lte=Now())

    def due_keys(self) -> set[str]:
        """Return the keys of limits whose next check is due, a few hundred at most."""
        return set(self.due().order_by("next_at").values_list("pk", flat=True)[:FORGET_BATCH])

    def forget(self, tasks: TaskFilterQuerySet[Any]) -> int:
        """Delete limits without override, without tasks for a day, and with a full bucket; return how many."""
        total, last = 0, ""
        old_rows = self.filter(NOT_OVERRIDDEN, released_at__lt=NowPlus(-FORGET_AFTER))
        if not old_rows.exists():
            return 0
        while True:
            with transaction.atomic(using=self.db):
                # By key, so that limits that have to stay are read once. An index on times would cost each release an
                # entry.
                rows = old_rows.filter(pk__gt=last).order_by("pk")
                old = list(rows.lock()[:FORGET_BATCH])
                total += self._forget({limit.pk for limit in old if limit.is_full}, tasks)
            if len(old) < FORGET_BATCH:
                return total
            last = old[-1].pk

    def _forget(self, idle: set[str], tasks: TaskFilterQuerySet[Any]) -> int:
        for rows in (tasks.blocked(), tasks.released()):
            idle -= set(rows.filter(limit_key__in=idle).values_list("limit_key", flat=True)) if idle else set()
        return self.filter(pk__in=idle).delete()[0] if idle else 0


class Limit(models.Model):
    """The limit of a key. Its row is the lock for releasing tasks; the row counts nothing.

    A release stores the terms that the code declares. Only operators set and remove an override.
    """

    key = models.CharField(_("key"), max_length=LENGTH, primary_key=True)
    max_concurrency = models.PositiveIntegerField(
        _("max concurrency"), null=True, blank=True, help_text=_("Defined by the task. Empty: no limit.")
    )
    rate = models.CharField(
        _("rate"), max_length=50, null=True, blank=True, help_text=_("Defined by the task. Empty: no limit.")
    )
    max_concurrency_override = models.PositiveIntegerField(
        _("max concurrency"),
        null=True,
        blank=True,
        help_text=_("Overrides the task. 0: no task starts; 1000000: no limit. Empty: as the task declares."),
    )
    rate_override = models.CharField(
        _("rate limit"),
        max_length=50,
        null=True,
        blank=True,
        help_text=_("Overrides the task, e.g. 100/m; none: no limit. Empty: as the task declares."),
    )
    tokens = models.FloatField(_("tokens"), null=True, blank=True, editable=False)
    refilled_at = DateTimeField(_("refilled at"), null=True, blank=True, editable=False)
    released_at = DateTimeField(_("last admitted"), db_default=Now(), editable=False)
    next_at = DateTimeField(
        _("next check"), null=True, blank=True, help_text=_("When the rate limit admits the next task.")
    )

    objects = LimitQuerySet.as_manager()

    class Meta:
        db_table = "horsies_limits"
        verbose_name = _("limit")
        verbose_name_plural = _("limits")
        indexes = [
            models.Index(fields=["next_at"], condition=Q(next_at__isnull=False), name="horsies_limit_next"),
        ]
        constraints = [
            values_in_range(
                "limit",
                "refilled_at released_at next_at max_concurrency max_concurrency_override",
                tokens=TOKEN_RANGE,
            ),
        ]

    def __str__(self) -> str:
        return self.key

    def clean(self) -> None:
        """Validate the override. Raises ValidationError that names, for each field, what is allowed."""
        self.rate_override = self.rate_override or None
        wrong = {}
        for name, column in (("max_concurrency", "max_concurrency_override"), ("rate_limit", "rate_override")):
            try:
                setattr(self, column, COLUMNS[name].parse(getattr(self, column)))
            except ValueError:
                wrong[column] = ALLOWED[name]
        if wrong:
            raise ValidationError(wrong)

    @property
    def terms(self) -> LimitTerms:
        """The terms in force: the override, else what the code declared at the last release."""
        max_concurrency = (
            self.max_concurrency if self.max_concurrency_override is None else self.max_concurrency_override
        )
        rate = self.rate_override or self.rate
        return LimitTerms(
            None if max_concurrency is not None and max_concurrency >= NO_LIMIT else max_concurrency,
            None if rate == NO_RATE else rate,
        )

    def adopt_declared(self) -> bool:
        """Take the terms that this process's code declares for the first blocked task; return whether they are new.

        The name of the task was read with the row. The row's terms stay if no task is blocked, or the code has no such
        task.
        """
        declared = declared_terms(self.__dict__["first_task"])
        if declared is None or declared == (self.max_concurrency, self.rate):
            return False
        self.max_concurrency, self.rate = declared
        return True

    @property
    def now(self) -> datetime:
        """The database's clock, if it was read with the row."""
        clock: datetime = self.__dict__["clock"]
        return clock

    @property
    def bucket(self) -> Rate | None:
        """The rate; None if there is none or if it is invalid."""
        rate = self.terms.rate
        return None if rate is None else _read(rate)

    def tokens_now(self, rate: Rate) -> float:
        """Return how many tasks the rate lets start now."""
        since = None if self.refilled_at is None else (self.now - self.refilled_at).total_seconds()
        return rate.tokens(self.tokens, since)

    @property
    def is_full(self) -> bool:
        """Whether the bucket is full, so that deleting the row loses nothing."""
        rate = self.bucket
        return rate is None or self.tokens_now(rate) >= rate.burst

    def spend(self, tokens: float) -> None:
        """Set the number of tokens that are left."""
        used_at = self.refilled_at
        # Of two transactions, the later one may have read the earlier clock.
        is_newer = used_at is not None and 0 <= (used_at - self.now).total_seconds() <= CLOCK_STEP
        self.tokens, self.refilled_at = tokens, used_at if is_newer else self.now


@lru_cache(maxsize=256)
def _read(rate: str) -> Rate | None:
    try:
        return Rate.parse(rate)
    except ValueError as error:
        logger.warning("invalid rate of a limit ignored error=%s", error)
        return None
