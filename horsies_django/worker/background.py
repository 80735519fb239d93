"""The reaper and the scheduler of a worker, each in a thread and on a connection of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..db.connection import own_connection
from ..models.check_migrated import MissingPrivilege
from ..reaper.loop import Reaper
from ..schedules.scheduler import Scheduler
from .config import Until, WorkerConfig
from .listener import alive_for
from .started_registry import Notice

logger = logging.getLogger("horsies_django.worker")


class Background:
    """Runs the loops that the configuration asks for. The thread of one that has failed calls ``stop``.

    A worker that does not reap looks healthy and is not: it must fail visibly.
    """

    def __init__(self, config: WorkerConfig, stop: Callable[[], None]) -> None:
        self.has_failed = False
        self._config = config
        self._stop = stop
        self._loops: dict[str, Reaper | Scheduler] = {}
        self._scheduler: Scheduler | None = None
        if config.reaper:
            self._loops["reaper"] = Reaper(config.options, config.backend)
        if config.scheduler and config.until is Until.STOPPED:
            self._loops["scheduler"] = self._scheduler = Scheduler(config.options, config.backend)

    def start(self) -> None:
        """Start the threads."""
        for entry in self._loops.items():
            threading.Thread(target=self._run, args=entry, name=f"horsies-{entry[0]}", daemon=True).start()

    def stop(self) -> None:
        """Stop the loops soon."""
        for loop in self._loops.values():
            loop.stop()

    def on_notice(self, notice: Notice) -> None:
        """Pass a notice of a runner on to the scheduler, which has no connection of its own that listens.

        Each listening connection is one more process of the server that every NOTIFY wakes.
        """
        if self._scheduler is None:
            return
        if notice is Notice.LISTENING:
            self._scheduler.expect_notifications(alive_for(self._config))
        else:
            self._scheduler.wake()

    def _run(self, name: str, loop: Reaper | Scheduler) -> None:
        try:
            with own_connection(self._config.database, name, waits=True):
                loop.run()
            return
        except MissingPrivilege as error:
            logger.error("%s failed, this worker stops: %s", name, error)
        except BaseException:
            logger.exception("%s failed, this worker stops", name)
        self.has_failed = True
        self._stop()
