"""The loop of a reaper."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from django.db import Error, close_old_connections, connections

from ..bell import Stop
from ..conf import Options
from ..models import Turn
from ..refusals import is_outage
from .duties import DutyReport, run_pass

logger = logging.getLogger("horsies_django.reaper")


#: The turn that the reapers of one backend take.
TURN: Final = "reaper"

#: Seconds for which nobody's silence counts after the database was away: workers try again every five seconds at least,
#: and beat as soon as they get through.
MERCY: Final = 10.0


class Reaper:
    """Runs a pass, waits, runs the next. Of any number of reapers one at a time does, whoever comes first.

    A pass is due once none has been for ``interval`` seconds. So a reaper that dies in its turn is missed for no longer
    than that, and nobody holds a lock.
    """

    def __init__(self, options: Options, backend: str, interval: float | None = None) -> None:
        self._options = options
        self._interval = options.recovery.check_interval_ms / 1_000 if interval is None else interval
        self._turn = f"{TURN}:{backend}"[:100]  # each backend has thresholds of its own
        self._id = uuid4().hex
        self._stopped = Stop()
        self._was_away = False
        self._merciful_until = float("-inf")

    def stop(self) -> None:
        """End after the pass that runs."""
        self._stopped.set()

    def run_once(self) -> Sequence[DutyReport]:
        """Run one pass on this thread's connection, whoever's turn it is."""
        return run_pass(self._options)

    def run(self) -> None:
        """Run passes until stopped."""
        while not self._stopped.is_set:
            close_old_connections()
            try:
                pause = self._take_turn()
            except Error as error:
                if is_outage(error):
                    logger.warning("no reaping for now, the database is not to be had: %s", error)
                    self._was_away = True
                else:
                    logger.exception("no reaping for now, the database refused a statement")
                connections[self._options.database].close()
                pause = self._interval
            close_old_connections()
            self._stopped.wait(min(pause, self._interval))

    def _take_turn(self) -> float:
        """Run a pass if it is this one's turn; return the seconds until the next may be."""
        turns = Turn.objects.using(self._options.database)
        if wait := turns.take(self._turn, self._id, self._interval):
            return wait
        if self._was_away:
            self._was_away = False
            self._merciful_until = time.monotonic() + MERCY
        run_pass(
            self._options,
            lambda: not self._stopped.is_set and turns.keep(self._turn, self._id),
            has_mercy=time.monotonic() < self._merciful_until,
        )
        return self._interval
