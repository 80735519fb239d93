"""How often a worker looks for work: soon after there was some, then less and less often, and when some is due."""

from __future__ import annotations

import random
import time
from typing import Final

#: Seconds from finding something to the next look; each look in vain doubles them.
MIN_PAUSE: Final = 0.025

#: Where somebody wakes the worker, it need not look this often: only for what was never told, or got lost.
NOTIFIED_FACTOR: Final = 5

#: A worker whose slots are never idle still looks this often, in seconds, for what nobody tells it: what was sent for
#: later meanwhile, queues that are paused no more. Where nobody tells it anything it looks as ``SOON`` as others.
BUSY_INTERVAL: Final = 1.0


class PollInterval:
    """When to look next. Times are of the monotonic clock, in seconds."""

    def __init__(self, max_pause: float) -> None:
        self.longest = max_pause
        self.busy_interval = BUSY_INTERVAL
        self._pause = MIN_PAUSE
        self._next = 0.0
        self._due_at = float("inf")
        self._polled_at = float("-inf")

    @property
    def next_poll(self) -> float:
        """When to look if nothing comes before."""
        return min(self._next, self._due_at)

    def record_notification(self) -> None:
        """Somebody said that there is something. Who says so may leave the next unsaid: look soon, and soon again."""
        self._pause = MIN_PAUSE
        self._next = min(self._next, time.monotonic() + MIN_PAUSE)

    def record_claim(self) -> None:
        """There was something: look again soon."""
        self._pause = MIN_PAUSE
        self._next = time.monotonic() + MIN_PAUSE

    def record_poll(self, *, found: bool, due_in: float | None) -> None:
        """A look is over: was there something, and in how many seconds will more be due?"""
        now = self._polled_at = time.monotonic()
        self._pause = MIN_PAUSE if found else min(self._pause * 2, self.longest)
        # Runners that were started together must not look together.
        self._next = now + self._pause * random.uniform(0.8, 1.2)  # noqa: S311  # guards nothing
        self._due_at = float("inf") if due_in is None else now + due_in

    def poll_by(self, moment: float) -> None:
        """Something is due at ``moment``: look then at the latest."""
        self._due_at = min(self._due_at, moment)

    def is_due(self) -> bool:
        """Whether it is time to look."""
        return time.monotonic() >= self.next_poll

    def is_due_while_busy(self, *, is_asked: bool) -> bool:
        """Whether to look although there is enough to do: something is due, or may be, or somebody has asked for it."""
        now = time.monotonic()
        due = now if is_asked else self._due_at
        return now >= self._polled_at + self.busy_interval or now >= max(due, self._polled_at + MIN_PAUSE)
