"""Turns: who of many does what only one is to do at a time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple

from django.db import models
from django.db.models import Q
from django.db.models.functions import Coalesce, Now
from django.utils.translation import gettext_lazy as _

from ..db.expressions import NowPlus, SecondsUntil
from .fields import DateTimeField

#: When a turn was taken that nobody has had yet.
NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Probe(NamedTuple):
    """What is known of a turn's probes: the database's time, and how many seconds ago it was.

    ``pending`` is the age of the oldest probe that has not ended (0 if there is none), ``since_outage`` the time since
    an outage was last noted (infinite if never, negative if the clock was set back since).
    """

    now: datetime
    pending: float
    since_outage: float


class LeaseQuerySet(models.QuerySet["Lease"]):
    """Taking turns by guarded updates. No lock is held: a holder that dies merely lets its time pass."""

    def acquire(self, name: str, holder: str, interval: float) -> float:
        """Take the turn if nobody has had it for ``interval`` seconds: return 0, else the seconds that are left."""
        # A turn in the future was taken by a clock that has been set back since.
        is_free = Q(taken_at__lte=NowPlus(-interval)) | Q(taken_at__gt=NowPlus(1))
        free = self.filter(is_free, name=name)
        if free.update(holder=holder, taken_at=Now()):
            return 0.0
        since = self.filter(name=name).values_list(SecondsUntil("taken_at"), flat=True).first()
        if since is None:
            self.bulk_create([Lease(name=name, taken_at=NEVER)], ignore_conflicts=True)
            return self.acquire(name, holder, interval)
        return float(max(interval + since, 0.001))

    def renew(self, name: str, holder: str) -> bool:
        """Begin the turn's interval anew, while it is in use; return whether it was still the holder's."""
        return self.filter(name=name, holder=holder).update(taken_at=Now()) == 1

    def begin_probe(self, name: str) -> None:
        """Note that a probe begins, unless an earlier one has not ended yet."""
        if not self.filter(name=name).update(probing_since=Coalesce("probing_since", Now())):
            self.bulk_create([Lease(name=name, taken_at=NEVER, probing_since=Now())], ignore_conflicts=True)

    def last_probe(self, name: str) -> Probe:
        """Return what is known of this turn's probes."""
        columns = (Now(), SecondsUntil("probing_since"), SecondsUntil("outage_at"))
        row = self.filter(name=name).values_list(*columns).first()
        if row is None:  # deleted since the probe began
            self.begin_probe(name)
            return self.last_probe(name)
        now, until_probe, until_outage = row
        return Probe(now, -(until_probe or 0.0), float("inf") if until_outage is None else -until_outage)

    def end_probe(self, name: str, *, is_outage: bool) -> None:
        """Note that a probe has succeeded, and so that the outage, if there was one, is over."""
        noted = {"outage_at": Now()} if is_outage else {}
        self.filter(name=name).update(probing_since=None, **noted)


class Lease(models.Model):
    """Who has last done something that one does at a time, and when, by the database's clock.

    The turn of a reaper also says since when a probe of the database has not ended, and when an outage was last noted.
    """

    name = models.CharField(_("name"), primary_key=True, max_length=100)
    holder = models.CharField(_("holder"), max_length=64, blank=True)
    taken_at = DateTimeField(_("taken at"), db_default=Now())
    probing_since = DateTimeField(_("probing since"), null=True)
    outage_at = DateTimeField(_("outage at"), null=True)

    objects = LeaseQuerySet.as_manager()

    class Meta:
        db_table = "horsies_leases"
        verbose_name = _("lease")
        verbose_name_plural = _("leases")

    def __str__(self) -> str:
        return self.name
