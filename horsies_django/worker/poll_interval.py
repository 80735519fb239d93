"""How often a worker looks for work: soon after there was some, then less and less often, and when some is due."""

from __future__ import annotations

import random
import time
from typing import Final

#: Seconds from finding something to the next look; each look in vain doubles them.
SOON: Final = 0.025

#: Where somebody wakes the worker, it need not look this often: only for what was never told, or got lost.
WOKEN: Final = 5

#: A worker whose slots are never idle still looks this often, in seconds, for what nobody tells it: what was sent for
#: later meanwhile, queues that are paused no more. Where nobody tells it anything it looks as ``SOON`` as others.
AT_LEAST: Final = 1.0


class Cadence:
    """When to look next. Times are of the monotonic clock, in seconds."""

    def __init__(self, longest: float) -> None:
        self.longest = longest
        self.at_least = AT_LEAST
        self._pause = SOON
        self._next = 0.0
        self._due = float("inf")
        self._looked_at = float("-inf")

    @property
    def next_look(self) -> float:
        """When to look if nothing comes before."""
        return min(self._next, self._due)

    def stirred(self) -> None:
        """Somebody said that there is something. Who says so may leave the next unsaid: look soon, and soon again."""
        self._pause = SOON
        self._next = min(self._next, time.monotonic() + SOON)

    def found(self) -> None:
        """There was something: look again soon."""
        self._pause = SOON
        self._next = time.monotonic() + SOON

    def looked(self, *, found: bool, due_in: float | None) -> None:
        """A look is over: was there something, and in how many seconds will more be due?"""
        now = self._looked_at = time.monotonic()
        self._pause = SOON if found else min(self._pause * 2, self.longest)
        # Runners that were started together must not look together.
        self._next = now + self._pause * random.uniform(0.8, 1.2)  # noqa: S311  # guards nothing
        self._due = float("inf") if due_in is None else now + due_in

    def due_at(self, moment: float) -> None:
        """Something is due at ``moment``: look then at the latest."""
        self._due = min(self._due, moment)

    def is_due(self) -> bool:
        """Whether it is time to look."""
        return time.monotonic() >= self.next_look

    def cannot_wait(self, *, is_asked: bool) -> bool:
        """Whether to look although there is enough to do: something is due, or may be, or somebody has asked for it."""
        now = time.monotonic()
        due = now if is_asked else self._due
        return now >= self._looked_at + self.at_least or now >= max(due, self._looked_at + SOON)
