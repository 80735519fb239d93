"""The scheduler: sends the tasks and workflows of due schedules, each slot once.

Any number of schedulers may run. There is no leader and no lock between passes: a guarded update of the schedule's row,
in one transaction with the send, decides which scheduler fires a slot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db import Error, close_old_connections, connections
from django.db.models import Exists, Q, Subquery

from ..core.clock import aware
from ..core.options import Options
from ..core.sync import StopEvent
from ..db.clock import database_now, select_values
from ..db.errors import is_row_error
from ..db.expressions import NowPlus, SecondsUntil
from ..db.now import Now
from ..models import Lease
from ..models.check_migrated import MissingPrivilege, raise_if_forbidden, raise_if_grants_are_missing
from ..models.lease import NEVER
from ..models.schedule import CatchUp, Schedule, ScheduleQuerySet
from .dispatch import MISSED_AFTER, Fired, UnknownTarget, error_text, fire_due
from .syncing import SyncReport, declared_names, project_of, sync

logger = logging.getLogger("horsies_django.scheduler")

#: Maximum seconds between two passes; a schedule that another process creates or changes is noticed within that time.
INTERVAL: Final = 1.0

#: The same while notifications of such changes arrive. What plain SQL changes is noticed within that time.
NOTIFIED_INTERVAL: Final = 5.0

#: Seconds until the next pass if another scheduler holds the due rows or an error stopped the pass, and at least until
#: one that a notification causes.
SHORT_PAUSE: Final = 0.1

#: Seconds after which a pass is recorded again, for metrics.
RECORD_INTERVAL: Final = 15.0

#: How often a schedule is declared in the time after which it is disabled otherwise, and that time if it never is.
DECLARATIONS: Final = 10
UNDECLARED_AFTER: Final = 600.0

#: Maximum due schedules of one pass; the rest are due in the next.
BATCH: Final = 500

#: Maximum missed slots that one pass catches up, of all schedules together: slots on time wait for one pass at most.
CATCH_UP_BATCH: Final = 50

#: Seconds before the first retry of a schedule that could not be sent, and the longest wait before a retry.
FIRST_RETRY: Final = 0.1
LONGEST_RETRY: Final = 60.0


@dataclass(frozen=True, slots=True)
class SchedulerReport:
    """The result of one pass: the slots that are done, and the seconds until the next pass.

    ``deferred`` has the errors, by name, of schedules that could not be sent and will be retried: their slots stay due.
    """

    fired: tuple[Fired, ...]
    deferred: Mapping[str, str]
    pause: float

    def __str__(self) -> str:
        return f"{sum(fired.handle is not None for fired in self.fired)} sent"


def lease_name(backend: str) -> str:
    """Return the name of the lease that records the last pass of a backend's schedulers. No scheduler waits for it."""
    return f"scheduler:{backend}"[:100]


class Scheduler:
    """Runs passes: each sends what is due, then waits for the next slot.

    ``interval`` is the longest time between two passes in seconds, while no notifications are expected.
    """

    def __init__(self, options: Options, backend: str, interval: float | None = None) -> None:
        self._options = options
        self._backend = backend
        self._interval = INTERVAL if interval is None else interval
        self._project = project_of(options)
        self._stopped = StopEvent()
        # When to retry each schedule that could not be sent, and the delay before that. Another scheduler may send it.
        self._retries: dict[Any, tuple[float, float]] = {}
        self._undeclared_after = options.disable_undeclared_schedules_after
        self._declare_interval = (self._undeclared_after or UNDECLARED_AFTER) / DECLARATIONS
        self._declare_at = float("-inf")
        self._declared_at = self._declares_since = NEVER
        self._is_synced = False
        self._is_paused = False
        self._notified_until = float("-inf")
        self._record_at = float("-inf")

    def stop(self) -> None:
        """Stop after the current slot. Safe to call from a signal handler."""
        self._stopped.set()

    def wake(self) -> None:
        """Run the next pass at once: a schedule has changed. May be called from any thread."""
        self._stopped.wake()

    def expect_notifications(self, seconds: float) -> None:
        """Rely for so many seconds on a call of :meth:`wake` for each change. May be called from any thread."""
        self._notified_until = time.monotonic() + seconds

    def sync(self) -> SyncReport:
        """Write the schedules that code declares to the database."""
        report = sync(self._options, self._backend)
        self._forget_later_times()
        self._is_synced = True
        return report

    def disable_undeclared(self) -> list[str]:
        """Disable the schedules that no process has declared for a while; return their names."""
        if self._undeclared_after is None:
            return []
        names = self._own_rows.filter(backend=self._backend).disable_undeclared(self._undeclared_after)
        for name in names:
            log_format = "schedule disabled name=%r: no process has declared it for %g s"
            logger.warning(log_format, name, self._undeclared_after)
        return names

    def run_once(self) -> SchedulerReport:
        """Run one pass on this thread's connection: send what is due by the database's clock.

        A schedule that can't be sent is deferred; the others are still sent. Costs one statement if nothing is due.
        """
        pause = self._pause()
        if pause > 0:
            return SchedulerReport((), {}, min(pause, self._longest_pause))
        fired, deferred = self._fire_batch()
        pause = self._pause() if fired or deferred else SHORT_PAUSE
        return SchedulerReport(tuple(fired), deferred, min(max(pause, 0.0), self._longest_pause))

    def run_all(self) -> SchedulerReport:
        """Run passes until nothing that this process can send is due; return the combined report."""
        fired: list[Fired] = []
        deferred: dict[str, str] = {}
        while True:
            report = self.run_once()
            is_progress = report.fired or report.deferred.keys() - deferred.keys()
            fired += report.fired
            deferred |= report.deferred
            if not is_progress or report.pause > 0 or self._stopped.is_set:
                break
        sent = {each.schedule for each in fired}
        left = {name: error for name, error in deferred.items() if name not in sent}
        return SchedulerReport(tuple(fired), left, report.pause)

    def run(self) -> None:
        """Run passes until stopped. Raises MissingPrivilege."""
        while not self._stopped.is_set:
            pause = self._fire_next()
            self._stopped.wait(min(pause, SHORT_PAUSE))
            self._stopped.wait(pause - SHORT_PAUSE, until_woken=True)

    def _fire_next(self) -> float:
        """Run one pass and handle database errors; return the seconds until the next pass."""
        try:
            self._declare()
            report = self.run_once()
            self._record_pass()
        except Error as error:
            raise_if_forbidden(self._options.database, error)
            if not self._is_paused:  # log an outage once
                logger.warning("scheduler paused, the database is unavailable error=%s", error)
            self._is_paused = True
            connections[self._options.database].close()
            return self._interval
        if self._is_paused:
            logger.info("scheduler resumed, the database is available again")
            self._is_paused = False
        if report.fired or report.deferred:
            close_old_connections()  # signal receivers and workflow builders may have opened some
        return report.pause

    def _declare(self) -> None:
        """Write the declared schedules once; from then on, record from time to time that they are still declared.

        Only a process that has done so without a long gap disables undeclared schedules: after an outage, or a jump of
        the clock, the other processes need time to declare theirs.
        """
        if time.monotonic() < self._declare_at:
            return
        names = declared_names()
        forgotten = self._own_rows.filter(backend=self._backend, declared_enabled=None, name__in=names)
        if not self._is_synced or forgotten.exists():
            self.sync()
        else:
            self._own_rows.declare(names, self._declare_interval / 2)
            self._forget_later_times()
        now = database_now(self._options.database)
        if not timedelta() <= now - self._declared_at <= timedelta(seconds=self._declare_interval * DECLARATIONS / 2):
            self._declares_since = now
        self._declared_at = now
        if self._undeclared_after and (now - self._declares_since).total_seconds() >= self._undeclared_after:
            self.disable_undeclared()
        self._declare_at = time.monotonic() + self._declare_interval

    def _forget_later_times(self) -> None:
        for name in self._served_rows.forget_later_times():
            log_format = (
                "schedule planned again name=%r: it was sent or changed before the database's clock was set back"
            )
            logger.warning(log_format, name)

    def _record_pass(self) -> None:
        """Record from time to time that passes succeed, for metrics."""
        if time.monotonic() >= self._record_at:
            Lease.objects.using(self._options.database).record(lease_name(self._backend), RECORD_INTERVAL)
            self._record_at = time.monotonic() + RECORD_INTERVAL

    def _pause(self) -> float:
        """Return the seconds until the next slot; 0 or less if a slot is due or a next run must be computed."""
        retries = self._next_retries()  # before the query: a retry that becomes due meanwhile is in it
        first = self._served_rows.next_up().values(seconds=SecondsUntil("next_run_at"))[:1]
        seconds, is_unplanned, stale = select_values(
            self._options.database,
            seconds=Subquery(first),
            is_unplanned=Exists(self._served_rows.unplanned()),
            # Not EXISTS: PostgreSQL estimates that most rows match, and would scan the table for the first one.
            stale=Subquery(self._served_rows.with_outdated_plan().values("pk")[:1]),
        )
        if is_unplanned or stale is not None:
            return 0.0
        return min([self._longest_pause if seconds is None else float(seconds), *retries.values()])

    def _fire_batch(self) -> tuple[list[Fired], dict[str, str]]:
        unplanned, due = self._served_rows.unplanned(), self._served_rows.next_up().filter(next_run_at__lte=Now())
        missed = Q(catch_up=CatchUp.ALL, next_run_at__lt=NowPlus(-MISSED_AFTER))
        parts = (self._served_rows.with_outdated_plan(), due.exclude(missed), unplanned, due.filter(missed))
        fired: list[Fired] = []
        deferred: dict[str, str] = {}
        columns = ("pk", "name", "next_run_at", Now())
        batch = [(rows, *row) for rows in parts for row in rows.values_list(*columns)[:BATCH]]
        caught_up = 0
        for rows, key, name, run_at, now in batch:
            try:
                for slot in fire_due(self._rows, key, run_at, aware(now)):
                    fired.append(slot)
                    caught_up += rows is parts[-1]
                    if self._stopped.is_set or caught_up == CATCH_UP_BATCH:
                        break
            except MissingPrivilege:
                raise
            except Exception as error:  # noqa: BLE001  # _defer() logs it
                raise_if_grants_are_missing(self._options.database, error)
                deferred[name] = self._defer(key, name, error)
            else:
                self._retries.pop(key, None)
            if self._stopped.is_set or caught_up == CATCH_UP_BATCH:
                break
        return fired, deferred

    def _defer(self, key: Any, name: str, error: Exception) -> str:
        """Postpone a schedule that failed, or disable it if its row causes the error; return the text of the error.

        Raises ``error`` in an outage.
        """
        if isinstance(error, Error) and not connections[self._options.database].is_usable():
            raise error
        if is_row_error(error):
            logger.error("schedule disabled name=%r: its next run can't be computed", name, exc_info=error)
            self._rows.filter(pk=key).disable_unreadable(error_text(error))
            return error_text(error)
        now = time.monotonic()
        retry_at, delay = self._retries.get(key, (now, 0.0))
        is_new = now > retry_at + 2 * LONGEST_RETRY or not delay  # in between another scheduler has sent it
        delay = FIRST_RETRY if is_new else min(delay * 2, LONGEST_RETRY)
        self._retries[key] = now + delay, delay
        if not isinstance(error, UnknownTarget):
            logger.error("schedule not sent name=%r: it will be retried", name, exc_info=error)
            return error_text(error)
        if is_new:
            logger.warning("schedule deferred name=%r: this process lacks its task or workflow error=%s", name, error)
        return str(error)

    def _next_retries(self) -> dict[Any, float]:
        """Return the seconds until the next try of each schedule that waits for one."""
        now = time.monotonic()
        return {key: retry_at - now for key, (retry_at, _) in self._retries.items() if retry_at > now}

    @property
    def _longest_pause(self) -> float:
        is_notified = time.monotonic() < self._notified_until
        return max(self._interval, NOTIFIED_INTERVAL) if is_notified else self._interval

    @property
    def _rows(self) -> ScheduleQuerySet:
        return Schedule.objects.using(self._options.database)

    @property
    def _own_rows(self) -> ScheduleQuerySet:
        """The rows of this project's declarations."""
        return self._rows.filter(source=self._project)

    @property
    def _served_rows(self) -> ScheduleQuerySet:
        served = self._rows.served_by(self._backend, self._project)
        waiting = self._next_retries()
        return served.exclude(pk__in=waiting.keys()) if waiting else served
