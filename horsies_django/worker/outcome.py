"""How a body came out."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ..models.claims import ClaimedTask, Ended

logger = logging.getLogger("horsies_django.worker")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A body that has ended: what to store, and what to say of it."""

    claim: ClaimedTask
    ended: Ended
    duration: float
    exception: BaseException | None = None

    def log(self) -> None:
        """Write the line of a body's end, or of its retry."""
        claim, ended = self.claim, self.ended
        if ended.error is None:
            level, word, more = logging.INFO, "completed", ""
        elif ended.retry_in is None:
            level, word, more = logging.ERROR, "failed", f" error={ended.error.code}"
        else:
            level, word, more = logging.WARNING, "retries", f" error={ended.error.code} in={ended.retry_in:.1f}s"
        if logger.isEnabledFor(level):
            logger.log(
                level,
                "task %s id=%s name=%s queue=%s attempt=%d duration=%.3fs%s",
                word,
                claim.task_id,
                claim.task_name,
                claim.queue_name,
                claim.attempt,
                self.duration,
                more,
                exc_info=self.exception if ended.error is not None and ended.retry_in is None else None,
            )
