"""The reaper's loop: it runs a pass at each interval while it holds the lease."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final
from uuid import uuid4

from django.db import Error, close_old_connections, connections

from ..core.options import Options
from ..core.sync import StopEvent
from ..db.errors import is_outage
from ..models import Lease, Worker
from ..models.check_migrated import raise_if_forbidden
from ..models.lease import REAPER_PREFIX
from .duties import DutyReport, run_pass
from .outages import OutageDetector

logger = logging.getLogger("horsies_django.reaper")


#: The seconds after its last heartbeat for which a worker may be alive: twice the longest interval.
ALIVE_AFTER_BEAT: Final = 240.0

#: The share of its interval after which the holder renews the lease while its pass goes on. Each duty has the rest.
RENEW_AFTER: Final = 0.1


class Reaper:
    """Runs a pass at each interval. Of several reapers of one backend, the one that holds the lease runs it.

    A pass is due ``interval`` seconds after the last one, or at once if that left rows. If the holder dies, another
    reaper takes over after that time, because a lease is not a lock. ``on_pass`` gets a line that describes each pass;
    by default it is logged at DEBUG.
    """

    def __init__(
        self,
        options: Options,
        backend: str,
        interval: float | None = None,
        on_pass: Callable[[str], None] | None = None,
    ) -> None:
        self._options = options
        self._on_pass = on_pass or partial(logger.debug, "%s")
        self._interval = options.recovery.check_interval if interval is None else interval
        self._lease_name = f"{REAPER_PREFIX}:{backend}"[:100]  # each backend has its own thresholds
        self._id = uuid4().hex
        self._has_warned = False
        self._stopped = StopEvent()

    def stop(self) -> None:
        """Stop after the duty that is running. Safe to call from a signal handler."""
        self._stopped.set()

    def run_once(self) -> Sequence[DutyReport]:
        """Run one pass on this thread's connection, even if another reaper holds the lease."""
        self._warn_of_rare_heartbeats()
        return run_pass(self._options, may_detect_stale=OutageDetector(self._options, self._lease_name).probe)

    def run(self) -> None:
        """Run passes until stopped.

        A reaper probes the database even while another one holds the lease, because it has to notice every outage.
        Raises MissingPrivilege.
        """
        detector = OutageDetector(self._options, self._lease_name)
        pause = 0.0
        while not self._stopped.is_set:
            close_old_connections()
            try:
                detector.probe(pause)
                pause = self._run_if_due(detector)
            except Error as error:
                raise_if_forbidden(self._options.database, error)
                if is_outage(error):
                    logger.warning("reaper pass skipped, the database is unavailable error=%s", error)
                else:
                    logger.exception("reaper pass skipped, the database rejected a statement")
                detector.fail()
                connections[self._options.database].close()
                pause = self._interval
            close_old_connections()
            pause = min(pause, self._interval, detector.interval)
            self._stopped.wait(pause)

    def _run_if_due(self, detector: OutageDetector) -> float:
        """Run a pass if the lease is free; return the seconds until the next may run."""
        leases, renew_at = Lease.objects.using(self._options.database), self._renew_at()
        if wait := leases.acquire(self._lease_name, self._id, self._interval):
            return wait

        def is_mine(has_worked: bool) -> bool:
            """Whether to go on. A pass that finds nothing takes milliseconds and renews nothing."""
            nonlocal renew_at
            detector.probe_while()
            if self._stopped.is_set:
                return False
            if not has_worked and time.monotonic() < renew_at:
                return True
            is_renewed = leases.renew(self._lease_name, self._id)
            renew_at = self._renew_at() if is_renewed else float("-inf")  # a lost lease is lost for the whole pass
            return is_renewed

        self._warn_of_rare_heartbeats()
        has_more = True
        while has_more:
            began = time.monotonic()
            reports = run_pass(self._options, is_mine, detector.probe)
            self._on_pass(f"reaper pass: {describe(reports)}")
            has_more = any(report.has_more for report in reports) and is_mine(False)
            if has_more and connections[self._options.database].vendor == "sqlite":  # others want to write too
                self._stopped.wait(time.monotonic() - began)
        return self._interval

    def _warn_of_rare_heartbeats(self) -> None:
        """Warn, once, if this reaper's thresholds are too short for the heartbeats of a live worker."""
        threshold = self._options.recovery.stale_after
        workers = Worker.objects.using(self._options.database).alive(ALIVE_AFTER_BEAT)
        slow = workers.filter(heartbeat_interval__gt=threshold / 2).values_list("pk", "heartbeat_interval")
        if not self._has_warned and (row := slow.order_by("-heartbeat_interval").first()) is not None:
            self._has_warned = True
            logger.warning(
                "reaper takes tasks from live workers: its threshold is under two of their heartbeat intervals "
                "threshold=%gs heartbeat_interval=%gs worker=%s",
                threshold,
                row[1],
                row[0],
            )

    def _renew_at(self) -> float:
        return time.monotonic() + RENEW_AFTER * self._interval


def describe(reports: Sequence[DutyReport]) -> str:
    """Return the reports of the duties that processed rows or failed, as one line."""
    return "; ".join(str(report) for report in reports if report.count or report.error) or "nothing to do"
