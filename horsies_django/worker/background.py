"""The reaper and the scheduler of a worker, each in a thread and on a connection of its own."""

from __future__ import annotations

import threading
from typing import Protocol

from ..db.connection import own_connection
from ..models.check_migrated import MissingPrivilege
from ..reaper.loop import Reaper
from ..schedules.scheduler import Scheduler
from .config import Until, WorkerConfig
from .listener import alive_for
from .started_registry import Notice


class Fail(Protocol):
    """Stops a worker and logs why."""

    def __call__(self, reason: str, *, exc_info: bool = False) -> None:
        """Stop it for this reason."""


class Background:
    """Runs the loops that the configuration asks for. ``fail`` is called in the thread of one that has failed.

    A worker that does not reap looks healthy and is not: it must fail visibly.
    """

    def __init__(self, config: WorkerConfig, fail: Fail) -> None:
        self._config = config
        self._fail = fail
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
        except MissingPrivilege as error:
            self._fail(f"{name} failed, this worker stops: {error}")
        except BaseException:  # noqa: BLE001  # fail() logs it
            self._fail(f"{name} failed, this worker stops", exc_info=True)
