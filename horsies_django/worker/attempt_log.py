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

    def __init__(self, options: AttemptLogOptions, worker_id: str, *, is_alone: bool) -> None:
        super().__init__(options.level)
        self._loggers = tuple(f"{name}." for name in options.loggers)
        self._worker_id = worker_id
        self._is_alone = is_alone

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record if a body has logged it."""
        if self._is_alone and record.levelno >= logging.WARNING and _has_no_other_handler(record.name):
            assert logging.lastResort is not None
            logging.lastResort.handle(record)  # as without this handler
        run = current_run.get()
        if run is None or run.output is None or run.runner.worker_id != self._worker_id:
            return
        if not run.has_begun or run.is_replaying or (self._loggers and not f"{record.name}.".startswith(self._loggers)):
            return
        try:
            message = clean_text(_FORMATTER.format(record))
        except Exception:  # noqa: BLE001  # as in any handler, a message with wrong arguments must not reach the caller
            self.handleError(record)
        else:
            data = {"level": record.levelname, "logger": clean_text(record.name), "message": message}
            run.output.add(OutputKind.LOG, data)


def _has_no_other_handler(name: str) -> bool:
    logger: logging.Logger | None = logging.getLogger(name)
    handlers = 0
    while logger is not None:
        handlers += len(logger.handlers)
        logger = logger.parent if logger.propagate else None
    return handlers == 1


@contextmanager
def keeping_attempt_logs(options: AttemptLogOptions | None, worker_id: str) -> Iterator[None]:
    """Keep the records of bodies during the block.

    If the project has left the root logger as Python makes it, its level becomes that of the records to keep.
    """
    if options is None:
        yield
        return
    root = logging.getLogger()
    level, is_alone = root.level, not root.handlers
    handler = AttemptLogHandler(options, worker_id, is_alone=is_alone)
    if is_alone and level == logging.WARNING:
        root.setLevel(min(level, handler.level))
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
