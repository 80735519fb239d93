"""Outages: times in which no worker could beat, so that silence does not mean death."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from typing import Final
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Now

from ..core.options import Options, RecoveryOptions
from ..core.status import BeatRole
from ..models import Heartbeat, Lease, Task, Worker

logger = logging.getLogger("horsies_django.reaper")

#: Seconds that workers get to beat again after an outage, unless twice their interval is more or a threshold is less:
#: time for a connection that has died in silence to be noticed and replaced.
OUTAGE_GRACE: Final = 30.0

#: No task has this id.
_NO_TASK: Final = UUID(int=0)


class OutageDetector:
    """Probes whether workers can beat, and notes in the reaper's lease when they could not.

    A probe writes to every table that a beat writes to. What keeps workers from beating (a lock, a silent network, a
    stopped server) therefore delays the probe as well, and a jump of the database's clock makes everything look old at
    once. All of it shows in one number: the database's time between two probes, compared with the pause that was
    planned between them.

    Reapers share what they notice. A probe that has begun and not ended is noted too, so a reaper that starts while
    all others are blocked learns of it. A reaper with no earlier probe measures its own statements only.
    """

    def __init__(self, options: Options, lease_name: str) -> None:
        self._database = options.database
        self._lease_name = lease_name
        recovery = options.recovery
        # A worker's silence is at most one beat interval (half a threshold), one pause between two probes and one
        # delay that is too short to be noticed, before it reaches the threshold.
        self._limit = self.interval = recovery.stale_after / 4
        self._grace = outage_grace(recovery)
        self._began = time.monotonic()
        self._probed = float("-inf")
        self._seen_at: datetime | None = None
        self._has_failed = False

    def fail(self) -> None:
        """Note that the database could not be reached: the next probe that succeeds ends an outage."""
        self._has_failed = True

    def probe(self, pause: float = 0.0) -> bool:
        """Probe, ``pause`` planned seconds after the last probe; return whether a silent worker may be judged.

        Raises :class:`django.db.Error` if the database can't be reached.
        """
        try:
            return self._probe(pause)
        except Exception:
            self._has_failed = True
            raise

    def probe_while(self) -> None:
        """Probe again if the last probe was some time ago: long work of the reaper itself is not an outage."""
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
            logger.warning(
                "outage: workers may have been unable to beat; stale tasks are left alone for %.1f s", self._grace
            )
        # A time that lies far ahead was noted before the clock was set back; one just ahead, by another session.
        return not is_outage and not -self._limit <= seen.since_outage < self._grace

    def _beat(self) -> None:
        """Write what a beat writes, for a worker and a task that don't exist."""
        Worker.objects.using(self._database).filter(pk="").update(last_beat_at=Now())
        tasks = Task.objects.using(self._database).filter(pk=_NO_TASK)
        tasks.update(timeout=F("timeout"))
        Heartbeat.objects.using(self._database).beat(tasks, BeatRole.RUNNER, "", "", 0)


def outage_grace(recovery: RecoveryOptions) -> float:
    """Return the seconds after an outage in which no worker is taken for dead; one threshold at most."""
    return min(recovery.stale_after, max(OUTAGE_GRACE, 2 * recovery.heartbeat_interval))


def _seconds(earlier: datetime, later: datetime) -> float:
    return (later - earlier).total_seconds()
