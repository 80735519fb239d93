"""Hints: how many notifications of others a worker goes by."""

from __future__ import annotations

import time
from typing import Final

#: Hints in a second, and at once after a pause. Each costs a statement at most; what is beyond is looked for together.
RATE: Final = 200.0
BURST: Final = 100.0

#: Seconds after which the worker looks for what it was not told of.
POLL_DELAY: Final = 0.01


class NotificationLimit:
    """A bucket of hints. Those that it refuses come to one look, :data:`SOON`."""

    def __init__(self) -> None:
        self._tokens = BURST
        self._filled_at = time.monotonic()
        self._refused_at = float("-inf")

    def allows(self) -> bool:
        """Whether to go by one more."""
        now = time.monotonic()
        self._tokens = min(BURST, self._tokens + (now - self._filled_at) * RATE)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def is_first_refusal(self) -> bool:
        """Whether none was refused within the time after which the worker looks anyway."""
        now = time.monotonic()
        if now - self._refused_at < POLL_DELAY:
            return False
        self._refused_at = now
        return True
