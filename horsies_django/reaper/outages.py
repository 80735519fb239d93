"""Detect outages in which no worker could send heartbeats, so that missing heartbeats do not mean a dead worker."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from typing import Final
from uuid import UUID

from django.db.models import F

from ..core.options import Options, RecoveryOptions
from ..db.now import Now
from ..models import Heartbeat, Lease, Task, Worker

logger = logging.getLogger("horsies_django.reaper")

#: Seconds after an outage in which workers may resume heartbeats, enough to notice and replace a dead connection.
#: :func:`outage_grace` raises it to two heartbeat intervals and caps it at the stale threshold.
OUTAGE_GRACE: Final = 30.0

#: No task has this id.
_NO_TASK: Final = UUID(int=0)


class OutageDetector:
    """Probes whether workers can send heartbeats, and stores outages in the reaper's lease.

    A probe writes to every table that a heartbeat writes to. Whatever keeps workers from sending heartbeats (a lock, a
    broken network, a stopped server) therefore delays the probe as well, and a jump of the database's clock makes every
    heartbeat look old. Both show in one number: the database's time between two probes, compared with the pause that
    was planned between them.

    Reapers share outages through the lease. The start of a probe is stored too, so a reaper that starts while all
    others are blocked sees the pending probe. A reaper's first probe measures only its own statements.
    """

    def __init__(self, options: Options, lease_name: str) -> None:
        self._database = options.database
        self._lease_name = lease_name
        recovery = options.recovery
        # A live worker misses heartbeats for at most one interval (half a threshold), one pause between two probes and
        # one delay too short to detect; with a quarter of the threshold each, that stays below the threshold.
        self._limit = self.interval = recovery.stale_after / 4
        self._grace = outage_grace(recovery)
        self._began = time.monotonic()
        self._probed = float("-inf")
        self._seen_at: datetime | None = None
        self._has_failed = False

    def fail(self) -> None:
        """Record that the database was unreachable: the next successful probe reports an outage."""
        self._has_failed = True

    def probe(self, pause: float = 0.0) -> bool:
        """Probe, ``pause`` planned seconds after the last probe; return whether a worker without heartbeats is dead.

        Raises :class:`django.db.Error` if the database can't be reached.
        """
        try:
            return self._probe(pause)
        except Exception:
            self._has_failed = True
            raise

    def probe_while(self) -> None:
        """Probe again if the last probe is old, so that a long pass of the reaper does not look like an outage."""
        if time.monotonic() > self._probed + self._limit / 2:
            self.probe()

    def _probe(self, pause: float) -> bool:
        leases = Lease.objects.using(self._database)
        leases.begin_probe(self._lease_name)
        self._beat()
        seen = leases.probe_status(self._lease_name)
        elapsed = time.monotonic() - self._began if self._seen_at is None else _seconds(self._seen_at, seen.now) - pause
        self._seen_at, self._probed = seen.now, time.monotonic()
        is_outage = self._has_failed or abs(elapsed) > self._limit or seen.pending > self._limit
        leases.end_probe(self._lease_name, is_outage=is_outage)
        self._has_failed = False
        if is_outage:
            logger.warning("outage detected grace=%.1fs: workers may have been unable to send heartbeats", self._grace)
        # An outage far in the future was stored before the clock was set back; one just ahead, by another session.
        return not is_outage and not -self._limit <= seen.since_outage < self._grace

    def _beat(self) -> None:
        """Run a heartbeat's statements for a worker and a task that don't exist."""
        Worker.objects.using(self._database).filter(pk="").update(last_beat_at=Now())
        tasks = Task.objects.using(self._database).filter(pk=_NO_TASK)
        tasks.update(timeout=F("timeout"))
        Heartbeat.objects.using(self._database).beat(tasks, "", "", 0)


def outage_grace(recovery: RecoveryOptions) -> float:
    """Return the seconds after an outage in which no worker counts as dead; at most the stale threshold."""
    return min(recovery.stale_after, max(OUTAGE_GRACE, 2 * recovery.heartbeat_interval))


def _seconds(earlier: datetime, later: datetime) -> float:
    return (later - earlier).total_seconds()
