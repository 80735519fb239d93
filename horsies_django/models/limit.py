"""Limits by key: how many tasks with a key may run at once, and how many may start in a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from django.db import models, transaction
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..core.bounds import Bounds, in_range
from ..core.limit_terms import LENGTH, LimitTerms
from ..core.rates import CLOCK_STEP, TOKEN_RANGE, Rate
from ..db.expressions import NowPlus
from ..db.fields import DateTimeField
from ..db.now import Now
from .filters import TaskFilterQuerySet

logger = logging.getLogger("horsies_django.worker")

BOUNDS: Final[Bounds] = (["refilled_at", "released_at", "next_at"], {"tokens": TOKEN_RANGE})

#: Seconds after which a limit without tasks is deleted.
FORGET_AFTER: Final = 86_400.0

#: Limits that one transaction checks.
FORGET_BATCH: Final = 500


class LimitQuerySet(models.QuerySet["Limit"]):
    """Limits, locked, due and forgotten."""

    def lock(self) -> LimitQuerySet:
        """Lock the rows that no other transaction has locked, and read the database's clock with them."""
        locked: LimitQuerySet = self.select_for_update(skip_locked=True).annotate(clock=Now())
        return locked

    def locked(
        self,
        keys: Collection[str],
        terms: LimitTerms | None,
        otherwise: Callable[[Collection[str]], Mapping[str, LimitTerms]],
    ) -> tuple[list[Limit], frozenset[str]]:
        """Lock the limits of some keys; return them and the keys that another transaction has locked.

        ``terms`` are what their task declares now. Without them, stored limits keep theirs, and ``otherwise`` gives the
        terms of limits that do not exist yet. Call it inside a transaction, which is the lock on databases without row
        locks.
        """
        # Ordered by key, so that two transactions that create the same limits do not deadlock.
        rows = self.filter(pk__in=keys).order_by("pk")
        found = list(rows.lock())
        if missing := set(keys).difference(limit.pk for limit in found):
            missing -= set(self.filter(pk__in=missing).values_list("pk", flat=True))
        if missing:
            ordered = sorted(missing)
            terms_by_key = dict.fromkeys(ordered, terms) if terms else otherwise(ordered)
            self.bulk_create([Limit(key=key, **terms_by_key[key]._asdict()) for key in ordered], ignore_conflicts=True)
            found += rows.filter(pk__in=missing).lock()
        if terms and (stale := [limit for limit in found if limit.terms != terms]):
            self.filter(pk__in=[limit.pk for limit in stale]).update(**terms._asdict())
            for limit in stale:
                limit.max_concurrency, limit.rate = terms
        return found, frozenset(keys).difference(limit.pk for limit in found)

    def due(self) -> LimitQuerySet:
        """Limits whose next check is due."""
        return self.filter(next_at__lte=Now())

    def forget(self, tasks: TaskFilterQuerySet[Any]) -> int:
        """Delete limits without tasks for a day and with a full bucket; return how many."""
        total, last = 0, ""
        old_rows = self.filter(released_at__lt=NowPlus(-FORGET_AFTER))
        if not old_rows.exists():
            return 0
        while True:
            with transaction.atomic(using=self.db):
                # By key, so that limits that have to stay are read once. An index on times would cost each release an
                # entry.
                rows = old_rows.filter(pk__gt=last).order_by("pk")
                old = list(rows.lock()[:FORGET_BATCH])
                total += self._forget({one.pk for one in old if one.is_full}, tasks)
            if len(old) < FORGET_BATCH:
                return total
            last = old[-1].pk

    def _forget(self, idle: set[str], tasks: TaskFilterQuerySet[Any]) -> int:
        for rows in (tasks.blocked(), tasks.released()):
            idle -= set(rows.filter(limit_key__in=idle).values_list("limit_key", flat=True)) if idle else set()
        return self.filter(pk__in=idle).delete()[0] if idle else 0


class Limit(models.Model):
    """The limit of a key. Its row is the lock for releasing tasks; the row counts nothing."""

    key = models.CharField(_("key"), max_length=LENGTH, primary_key=True)
    max_concurrency = models.PositiveIntegerField(
        _("max concurrency"), null=True, blank=True, help_text=_("Defined by the task. Empty: no limit.")
    )
    rate = models.CharField(
        _("rate"), max_length=50, null=True, blank=True, help_text=_("Defined by the task. Empty: no limit.")
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
            models.CheckConstraint(
                condition=in_range(*BOUNDS),
                name="horsies_limit_is_in_range",
            ),
        ]

    def __str__(self) -> str:
        return self.key

    @property
    def terms(self) -> LimitTerms:
        """The terms that its task declared last."""
        return LimitTerms(self.max_concurrency, self.rate)

    @property
    def now(self) -> datetime:
        """The database's clock, if it was read with the row."""
        clock: datetime = self.__dict__["clock"]
        return clock

    @property
    def bucket(self) -> Rate | None:
        """The rate; None if there is none or if it is invalid."""
        return None if self.rate is None else _read(self.rate)

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
