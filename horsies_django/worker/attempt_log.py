"""Keeps the log records of bodies with their output, if ``OPTIONS["attempt_log"]`` says so."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ..core.current_task import current_run
from ..core.options import AttemptLogOptions
from ..core.serialization import clean_text
from ..core.status import OutputKind

_FORMATTER: Final = logging.Formatter()


class AttemptLogHandler(logging.Handler):
    """A handler of the root logger that keeps what the bodies of one worker log, and the code that they call.

    The context of a body reaches its coroutines and ``to_thread()``, but not the threads that it starts itself.
    """

    def __init__(self, options: AttemptLogOptions, worker_id: str, root_level: int) -> None:
        super().__init__()
        self.root_level = root_level  # without these handlers
        self._level: int = getattr(logging, options.level)
        self._loggers = tuple(f"{name}." for name in options.loggers)
        self._worker_id = worker_id

    def handle(self, record: logging.LogRecord) -> bool:
        """Handle a record without a lock, which the interrupt of a body could leave locked."""
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record if a body has logged it; print it as without this handler if there is no other."""
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._is_first_and_alone(record.name):
            last.handle(record)
        run = current_run.get()
        if run is None or run.output is None or run.runner.worker_id != self._worker_id:
            return
        if record.levelno < self._level or not run.has_begun or run.is_replaying:
            return
        if self._loggers and not f"{record.name}.".startswith(self._loggers):
            return
        try:
            message = clean_text(_FORMATTER.format(record))
        except Exception:  # noqa: BLE001  # as in any handler, a message with wrong arguments must not reach the caller
            self.handleError(record)
        else:
            data = {"level": record.levelname, "logger": clean_text(record.name), "message": message}
            run.output.add(OutputKind.LOG, data)

    def _is_first_and_alone(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if _others(logger):
                return False
            logger = logger.parent if logger.propagate else None
        return next(iter(logging.getLogger().handlers), None) is self


def _others(logger: logging.Logger) -> list[logging.Handler]:
    return [handler for handler in logger.handlers if not isinstance(handler, AttemptLogHandler)]


@contextmanager
def keeping_attempt_logs(options: AttemptLogOptions | None, worker_id: str) -> Iterator[None]:
    """Keep the records of bodies during the block.

    If the project has left the root logger as Python makes it, its level becomes that of the records to keep.
    """
    if options is None:
        yield
        return
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if isinstance(handler, AttemptLogHandler)]
    handler = AttemptLogHandler(options, worker_id, ours[0].root_level if ours else root.level)
    if not _others(root) and handler.root_level == logging.WARNING:
        root.setLevel(min(root.level, getattr(logging, options.level)))
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        if len(root.handlers) == len(_others(root)):
            root.setLevel(handler.root_level)
