"""Leases: of several processes, one at a time does a job."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple

from django.db import IntegrityError, models
from django.db.models import Q
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from ..db.constraints import values_in_range
from ..db.expressions import NowPlus, SecondsUntil
from ..db.fields import DateTimeField
from ..db.now import Now

#: The ``renewed_at`` of a lease that has never been held.
NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)

#: The prefix of the name of the lease that the reapers of one backend share.
REAPER_PREFIX: Final = "reaper"

#: The prefix of the name of the lease that the embedded workers of one backend and host share.
EMBEDDED_PREFIX: Final = "embedded"


class ProbeStatus(NamedTuple):
    """The state of a lease's probes, by the database's clock; durations are in seconds.

    ``pending`` is the age of the oldest probe that has not ended (0 if there is none). ``since_outage`` is the time
    since the last outage (infinite if there was none, negative if the clock was set back since).
    """

    now: datetime
    pending: float
    since_outage: float


class LeaseQuerySet(models.QuerySet["Lease"]):
    """Guarded updates of leases. They hold no lock: the lease of a dead holder simply expires."""

    def acquire(self, name: str, holder: str, interval: float) -> float:
        """Acquire the lease if it was not renewed for ``interval`` seconds.

        Returns 0 if acquired, else the seconds that remain.
        """
        # A time in the future comes from before the clock was set back.
        is_free = Q(renewed_at__lte=NowPlus(-interval)) | Q(renewed_at__gt=NowPlus(1))
        free = self.filter(is_free, name=name)
        if free.update(holder=holder, renewed_at=Now()):
            return 0.0
        since = self.filter(name=name).values_list(SecondsUntil("renewed_at"), flat=True).first()
        if since is None:
            self.bulk_create([Lease(name=name, renewed_at=NEVER)], ignore_conflicts=True)
            return self.acquire(name, holder, interval)
        return float(max(interval + since, 0.001))

    def renew(self, name: str, holder: str) -> bool:
        """Restart the lease's interval; return False if the holder has lost it."""
        return self.filter(name=name, holder=holder).update(renewed_at=Now()) == 1

    def holder_of(self, name: str) -> str:
        """Return the last holder of the lease; "" if there is none."""
        return self.filter(name=name).values_list("holder", flat=True).first() or ""

    def release(self, name: str, holder: str) -> None:
        """Delete the lease, unless the holder has lost it."""
        self.filter(name=name, holder=holder).delete()

    def record(self, name: str, interval: float) -> None:
        """Record that something happens now, unless that was recorded within ``interval`` seconds."""
        is_old = Q(renewed_at__lte=NowPlus(-interval)) | Q(renewed_at__gt=NowPlus(1))
        mine = self.filter(name=name)
        if not mine.filter(is_old).update(renewed_at=Now()) and not mine.exists():
            self.bulk_create([Lease(name=name)], ignore_conflicts=True)

    def begin_probe(self, name: str) -> None:
        """Record that a probe begins, unless an earlier one has not ended yet."""
        if not self.filter(name=name).update(probing_since=Coalesce("probing_since", Now())):
            with suppress(IntegrityError):  # another one was first; bulk_create() would need a transaction
                self.create(name=name, renewed_at=NEVER, probing_since=Now())

    def probe_status(self, name: str) -> ProbeStatus:
        """Return the state of this lease's probes."""
        columns = (Now(), SecondsUntil("probing_since"), SecondsUntil("outage_at"))
        row = self.filter(name=name).values_list(*columns).first()
        if row is None:  # deleted since the probe began
            self.begin_probe(name)
            return self.probe_status(name)
        now, until_probe, until_outage = row
        return ProbeStatus(now, -(until_probe or 0.0), float("inf") if until_outage is None else -until_outage)

    def end_probe(self, name: str, *, is_outage: bool) -> None:
        """Record that a probe has succeeded, which also ends an outage."""
        outage = {"outage_at": Now()} if is_outage else {}
        self.filter(name=name).update(probing_since=None, **outage)


class Lease(models.Model):
    """The last holder of a job that one process does at a time, and when it renewed the lease, by the database's clock.

    The lease of a reaper also records its oldest open probe of the database, and the last outage. That of schedulers
    has no holder: it records only when their last pass was.
    """

    name = models.CharField(_("name"), primary_key=True, max_length=100)
    holder = models.CharField(_("holder"), max_length=64, blank=True)
    renewed_at = DateTimeField(_("renewed at"), db_default=Now())
    probing_since = DateTimeField(_("probing since"), null=True)
    outage_at = DateTimeField(_("outage at"), null=True)

    objects = LeaseQuerySet.as_manager()

    class Meta:
        db_table = "horsies_leases"
        verbose_name = _("lease")
        verbose_name_plural = _("leases")
        constraints = [
            values_in_range("lease", "renewed_at probing_since outage_at"),
        ]

    def __str__(self) -> str:
        return self.name
