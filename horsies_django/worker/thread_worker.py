"""A worker in threads of a process that does other work. It has no supervisor, and nothing kills its process."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from . import runner
from .background import Background
from .config import WorkerConfig
from .inbox import Command, Inbox
from .started_registry import ExitReason, Notice

#: Options that need processes of the worker's own, which can be replaced, killed or watched.
NEED_PROCESSES: Final = ("max_tasks_per_child", "max_memory_mb", "stall_timeout", "heartbeat_file", "state_dir")


class ThreadWorker:
    """Runs tasks, a reaper and a scheduler. What a supervisor would do by killing a process is not done."""

    def __init__(self, config: WorkerConfig, worker_id: str) -> None:
        self.worker_id = worker_id
        # No task starts ahead: a running one has begun, for a process that was killed leaves no other evidence.
        self._config = replace(config, is_embedded=True, start_ahead=0, max_tasks_per_child=None, max_memory_mb=None)
        self._inbox = Inbox()
        self._background = Background(self._config, self.stop)

    @property
    def has_failed(self) -> bool:
        """Whether the reaper or the scheduler has failed."""
        return self._background.has_failed

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
