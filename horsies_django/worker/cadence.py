"""How often a worker looks for work: soon after there was some, then less and less often."""

from __future__ import annotations

import random
import time
from typing import Final

#: Seconds from finding something to the next look; each look in vain doubles them.
SOON: Final = 0.025

#: Where somebody wakes the worker, it need not look this often: only for what was never told, or got lost.
WOKEN: Final = 5

#: A worker whose slots are never idle still looks this often, in seconds, for what has become due meanwhile.
AT_LEAST: Final = 1.0


class Cadence:
    """When to look next. Times are of the monotonic clock, in seconds."""

    def __init__(self, longest: float) -> None:
        self.longest = longest
        self._pause = SOON
        self.next_look = 0.0

    def found(self) -> None:
        """There was something: look again soon."""
        self._pause = SOON
        self.next_look = time.monotonic() + SOON

    def missed(self) -> None:
        """There was nothing: take more time before the next look."""
        self._pause = min(self._pause * 2, self.longest)
        # Runners that were started together must not look together.
        self.next_look = time.monotonic() + self._pause * random.uniform(0.8, 1.2)  # noqa: S311  # guards nothing

    def due_at(self, moment: float) -> None:
        """Something is due at ``moment``: look then at the latest."""
        self.next_look = min(self.next_look, moment)

    def is_due(self) -> bool:
        """Whether it is time to look."""
        return time.monotonic() >= self.next_look
