"""The loop of a reaper."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from django.db import close_old_connections

from ..conf import Options
from .duties import DutyReport, run_pass

logger = logging.getLogger("horsies_django.reaper")


class Reaper:
    """Runs a pass, waits, runs the next. Any number of reapers is safe: each change is guarded."""

    def __init__(self, options: Options, interval: float | None = None) -> None:
        self._options = options
        self._interval = options.recovery.check_interval_ms / 1_000 if interval is None else interval
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End after the pass that runs."""
        self._stopped.set()

    def run_once(self) -> Sequence[DutyReport]:
        """Run one pass on this thread's connection."""
        return run_pass(self._options)

    def run(self) -> None:
        """Run passes until stopped."""
        while not self._stopped.is_set():
            close_old_connections()
            self.run_once()
            close_old_connections()
            self._stopped.wait(self._interval)
