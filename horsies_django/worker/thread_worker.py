"""A worker in threads of a process that does other work. It has no supervisor, and nothing kills its process."""

from __future__ import annotations

import logging

from . import runner
from .background import Background
from .config import WorkerConfig
from .inbox import Command, Inbox
from .started_registry import ExitReason, Notice

logger = logging.getLogger("horsies_django.worker")


class ThreadWorker:
    """Runs tasks, a reaper and a scheduler. What a supervisor would do by killing a process is not done."""

    def __init__(self, config: WorkerConfig, worker_id: str) -> None:
        self.worker_id = worker_id
        self._config = config
        self._inbox = Inbox()
        self._background = Background(config, self._fail)
        self.has_failed = False  # the reaper or the scheduler

    def run(self, *, verbosity: int = 0) -> ExitReason:
        """Work in this thread and in others until stopped; return why it ended. ``verbosity``: see ``runner.run``."""
        self._background.start()
        try:
            return runner.run(self._config, self.worker_id, self._inbox, self._report, verbosity=verbosity)
        finally:
            self._background.stop()

    def stop(self, *, at_once: bool = False) -> None:
        """Stop in order, or interrupt what runs and put it back. Safe to call from a signal handler."""
        self._inbox.put(Command.STOP)
        if at_once:
            self._inbox.put(Command.ABORT)

    def _report(self, message: ExitReason | Notice) -> bool:
        """Pass a notice on; no supervisor could replace this runner."""
        if isinstance(message, Notice):
            self._background.on_notice(message)
        return False

    def _fail(self, reason: str, *, exc_info: bool = False) -> None:
        self.has_failed = True
        logger.error("%s", reason, exc_info=exc_info)
        self.stop()
