"""The beat: what is due is sent, each slot once.

Any number of them may run. None leads, and no lock is held between two looks: whoever passes a slot first does so by a
guarded update, in one transaction with what is sent.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

from django.db import Error, close_old_connections, connections
from django.db.models import Exists, Subquery
from django.db.models.functions import Now

from ..core.bounds import DATES_ALLOWED, date_if_within
from ..core.clock import aware
from ..core.options import Options
from ..core.sync import StopEvent
from ..db.clock import select_values
from ..db.errors import is_outage, is_row_error
from ..db.expressions import SecondsUntil
from ..models.check_migrated import MissingPrivilege, raise_if_forbidden, raise_if_grants_are_missing
from ..models.schedule import Schedule, ScheduleQuerySet
from .backoff import RetryLater
from .dispatch import UnknownTarget, error_text
from .fire_due import Fired, fire_due
from .project import project_of
from .syncing import SyncReport, sync

logger = logging.getLogger("horsies_django.scheduler")

#: Seconds between two looks: a schedule that is made or changed elsewhere is seen within that time.
INTERVAL: Final = 1.0

#: Seconds until the next look if what is due is in somebody else's hands, or could not be sent.
SHORT_PAUSE: Final = 0.1

#: Due schedules of one look; of those that are left the next one takes as many.
BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class Deferred:
    """A schedule that could not be sent for now: its slot is as it was."""

    schedule: str
    error: str

    def __str__(self) -> str:
        return f"{self.schedule}: left for later: {self.error}"


@dataclass(frozen=True, slots=True)
class SchedulerReport:
    """What one look came to: slots that were passed, schedules that were left, and the seconds until the next look."""

    fired: tuple[Fired, ...] = ()
    deferred: tuple[Deferred, ...] = ()
    pause: float = INTERVAL

    def __str__(self) -> str:
        return f"{sum(one.handle is not None for one in self.fired)} sent"


class Scheduler:
    """Looks for what is due, sends it, waits, and looks again."""

    def __init__(self, options: Options, backend: str, interval: float | None = None) -> None:
        self._options = options
        self._backend = backend
        self._interval = INTERVAL if interval is None else interval
        self._project = project_of(options)
        self._stopped = StopEvent()
        self._patience = RetryLater()
        self._is_synced = False
        self._is_away = False

    def stop(self) -> None:
        """End after the slot that is being passed; may be called from a signal handler."""
        self._stopped.set()

    def sync(self) -> SyncReport:
        """Write what code declares into rows."""
        self._disable_unreadable()
        report = sync(self._options, self._backend)
        self._is_synced = True
        return report

    def run_once(self) -> SchedulerReport:
        """Send what is due by the database's clock, on this thread's connection.

        One that can't be sent does not keep the others from theirs. Where nothing is due it costs one statement.
        """
        pause = self._pause()
        if pause > 0:
            return SchedulerReport(pause=min(pause, self._interval))
        passed, left = self._fire_batch()
        pause = self._pause() if passed or left else SHORT_PAUSE
        return SchedulerReport(tuple(passed), tuple(left), min(max(pause, 0.0), self._interval))

    def run_all(self) -> SchedulerReport:
        """Look until nothing is due any more that this one can send; return what all the looks came to."""
        passed: list[Fired] = []
        left: dict[str, Deferred] = {}
        while True:
            report = self.run_once()
            is_news = report.fired or any(one.schedule not in left for one in report.deferred)
            passed += report.fired
            left |= {one.schedule: one for one in report.deferred}
            if not is_news or report.pause > 0 or self._stopped.is_set:
                break
        for one in passed:
            left.pop(one.schedule, None)
        return SchedulerReport(tuple(passed), tuple(left.values()), report.pause)

    def run(self) -> None:
        """Look until stopped. Raises MissingPrivilege."""
        while not self._stopped.is_set:
            self._stopped.wait(self._fire_next())

    def _fire_next(self) -> float:
        """Look once, whatever the database is like; return the seconds until the next look."""
        try:
            if not self._is_synced:
                self.sync()
            report = self.run_once()
        except Error as error:
            raise_if_forbidden(self._options.database, error)
            if not is_outage(error) and self._disable_unreadable():
                return SHORT_PAUSE
            if not self._is_away:  # said once, and not each second
                logger.warning("nothing is scheduled for now, the database is not to be had: %s", error)
            self._is_away = True
            connections[self._options.database].close()
            return self._interval
        if self._is_away:
            logger.info("the database is back: what is due is sent")
            self._is_away = False
        if report.fired or report.deferred:
            close_old_connections()  # receivers and builders of workflows have theirs
        return report.pause

    def _disable_unreadable(self) -> int:
        """Disable schedules that stop all the others; return how many there are."""
        count = (
            self._rows.served_by(self._backend, self._project).unreadable().disable_unreadable("The row can't be read.")
        )
        if count:
            logger.error("%d schedules can't be read, and are disabled", count)
        return count

    def _pause(self) -> float:
        """Return the seconds until the next slot; 0 or less if one is due, or is to be worked out."""
        tries_again_in = self._patience.seconds()  # first: one whose time comes meanwhile is among the slots then
        first = self._served_rows.next_up().values(seconds=SecondsUntil("next_run_at"))[:1]
        seconds, is_unplanned, stale = select_values(
            self._options.database,
            seconds=Subquery(first),
            is_unplanned=Exists(self._served_rows.unplanned()),
            # Not EXISTS: PostgreSQL expects most rows to be such, and would scan the table for the first one.
            stale=Subquery(self._served_rows.with_outdated_plan().values("pk")[:1]),
        )
        if is_unplanned or stale is not None:
            return 0.0
        return min(self._interval if wait is None else float(wait) for wait in (seconds, tries_again_in))

    def _fire_batch(self) -> tuple[list[Fired], list[Deferred]]:
        unplanned, due = self._served_rows.unplanned(), self._served_rows.next_up().filter(next_run_at__lte=Now())
        passed: list[Fired] = []
        left: list[Deferred] = []
        columns = ("pk", "name", date_if_within("next_run_at"), Now())
        parts = (self._served_rows.with_outdated_plan(), due, unplanned)
        found = [(rows is unplanned, *row) for rows in parts for row in rows.values_list(*columns)[:BATCH]]
        for is_unplanned, key, name, run_at, now in found:
            try:
                if run_at is None and not is_unplanned:
                    raise ValueError(f"next_run_at can't be read; allowed: {DATES_ALLOWED}.")
                for one in fire_due(self._rows, key, run_at, aware(now)):
                    passed.append(one)
                    if self._stopped.is_set:
                        break
            except MissingPrivilege:
                raise
            except Exception as error:  # noqa: BLE001  # told there
                raise_if_grants_are_missing(self._options.database, error)
                left.append(self._defer(key, name, error))
            else:
                self._patience.forget(key)
            if self._stopped.is_set:
                break
        return passed, left

    def _defer(self, key: Any, name: str, error: Exception) -> Deferred:
        """Let a schedule alone for a while. Raises the error if the others can't be asked for either."""
        if isinstance(error, Error) and not connections[self._options.database].is_usable():
            raise error
        if is_row_error(error):
            logger.error("schedule %r can't be worked out, and is disabled", name, exc_info=error)
            self._rows.filter(pk=key).disable_unreadable(error_text(error))
            return Deferred(name, error_text(error))
        is_new = self._patience.put_off(key)
        if not isinstance(error, UnknownTarget):
            logger.error("schedule %r could not be sent, and will be tried again", name, exc_info=error)
        elif is_new:
            logger.warning("schedule %r is left to others for now, what it sends is not to be found: %s", name, error)
        return Deferred(name, str(error) if isinstance(error, UnknownTarget) else error_text(error))

    @property
    def _rows(self) -> ScheduleQuerySet:
        return Schedule.objects.using(self._options.database)

    @property
    def _served_rows(self) -> ScheduleQuerySet:
        served = self._rows.served_by(self._backend, self._project)
        waiting = self._patience.waiting()
        return served.exclude(pk__in=waiting) if waiting else served
