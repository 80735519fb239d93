"""The result of an execution."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from ..core.current_task import log_attributes
from ..core.exceptions import TaskRevoked
from ..core.serialization import clean_text
from ..models.claims import ClaimedTask, Completion
from . import console_logging, tracebacks
from .execution import Execution

logger = logging.getLogger("horsies_django.worker")

_ENDED: Final = "task %s id=%s name=%s queue=%s attempt=%d duration=%.3fs%s"


@dataclass(frozen=True, slots=True)
class NotStarted:
    """An execution that came too late to start: its task goes back to the queue."""

    execution: Execution


@dataclass(slots=True, eq=False)  # not frozen: that would take three times as long
class ExecutionResult:
    """An execution that has ended: what to store, and what to log."""

    execution: Execution
    completion: Completion
    exception: BaseException | None = None
    is_stored: bool = False  # by the transaction of the function itself
    duration: float = field(init=False)

    def __post_init__(self) -> None:
        """Measure the duration."""
        self.duration = max(0.0, time.monotonic() - self.execution.started_at)

    @property
    def claim(self) -> ClaimedTask:
        """The claimed row."""
        return self.execution.claim

    @property
    def is_final(self) -> bool:
        """Whether no further attempt follows, as far as this worker knows."""
        return self.completion.delay is None

    def log(self) -> None:
        """Log the end of an attempt. Lines of short tasks are written together when the handler is flushed."""
        claim, ended = self.claim, self.completion
        error = f" error={ended.error.code}" if ended.error else ""
        again = "" if ended.delay is None else f" in={ended.delay:.1f}s"
        values = self.execution.shown_id, claim.task_name, claim.queue_name, claim.attempt, self.duration, error + again
        if self.execution.stop_reason is TaskRevoked and not self.is_stored:
            logger.warning(_ENDED, "revoked", *values, extra=log_attributes(claim))
        elif ended.unknown_to is not None:
            why = f"{again} for a worker of another version: {clean_text(str(self.exception))}"
            logger.warning(_ENDED, "handed back", *values[:-1], why, extra=log_attributes(claim))
        elif ended.error is None:
            console_logging.log_later(claim, _ENDED, "snoozes" if again else "completed", *values, is_last=False)
        elif again:
            kind = f"{ended.error.exception_class}: " if ended.error.exception_class else ""
            extra = log_attributes(claim)
            why = f"{error}{again} why={kind}{ended.error.message}"
            logger.warning(_ENDED, "retries", *values[:-1], why, extra=extra)
            trace = "task traceback id=%s attempt=%s"
            logger.debug(trace, claim.task_id, claim.attempt, exc_info=self._exc_info(), extra=extra)
        else:
            logger.error(_ENDED, "failed", *values, exc_info=self._exc_info(), extra=log_attributes(claim))

    def _exc_info(self) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
        raised = self.exception
        return None if raised is None else (type(raised), raised, tracebacks.from_function(raised))
