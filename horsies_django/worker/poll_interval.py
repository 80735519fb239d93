"""The interval between two polls: short after work was found, longer after each poll that finds none."""

from __future__ import annotations

import random
import time
from typing import Final

#: Seconds from finding work to the next poll. Each poll that finds none doubles the pause.
MIN_PAUSE: Final = 0.025

#: How much longer a runner that gets notifications may pause: it polls only for what was never notified, or got lost.
NOTIFIED_FACTOR: Final = 5

#: Seconds between the polls of a runner that gets notifications and always has enough to do: for tasks that became due
#: meanwhile and queues that were resumed. Without notifications such a runner polls every ``MIN_PAUSE``.
BUSY_INTERVAL: Final = 1.0

#: A busy runner waits at least so many times the duration of its last poll. A poll is long while an old transaction
#: keeps vacuum from removing the index entries of tasks that have ended.
DURATION_FACTOR: Final = 20


class PollInterval:
    """When to poll next. Times are monotonic, in seconds.

    ``longest`` is the configured poll interval, and ``processes`` the number of runners that share the polling.
    """

    def __init__(self, longest: float, processes: int) -> None:
        self._longest = longest * processes
        self._max_pause = longest
        self._busy_interval = BUSY_INTERVAL
        self._pause = MIN_PAUSE
        self._next = 0.0
        self._due_at = float("inf")
        self._polled_at = float("-inf")
        self._rest = 0.0
        self._notified_queue: str | None = None

    @property
    def next_poll(self) -> float:
        """When to poll if nothing happens before."""
        return min(self._next, self._due_at)

    @property
    def longest_pause(self) -> float:
        """The seconds between two polls of an idle runner."""
        return self._max_pause

    def set_notified(self, is_notified: bool) -> None:
        """Poll less often while notifications arrive."""
        self._max_pause = self._longest * (NOTIFIED_FACTOR if is_notified else 1)
        self._busy_interval = BUSY_INTERVAL if is_notified else MIN_PAUSE

    def record_notification(self, queue_name: str | None = None) -> None:
        """Poll soon, and soon again: a sender skips notifications that follow each other too closely.

        While one queue alone is notified, each claim from it finds what was skipped before; then a poll is only needed
        after the last notification, and now and then for other queues.
        """
        now = time.monotonic()
        is_same, self._notified_queue = queue_name == self._notified_queue is not None, queue_name
        self._pause = MIN_PAUSE
        postponed = max(self._next, self._polled_at + self._busy_interval) if is_same else self._next
        self._next = min(postponed, now + MIN_PAUSE)

    def record_claim(self) -> None:
        """Poll again soon: there was work."""
        self._pause = MIN_PAUSE
        self._next = time.monotonic() + MIN_PAUSE

    def record_poll(self, *, found: bool, due_in: float | None, duration: float = 0.0) -> None:
        """Record a poll: whether it found work, in how many seconds more is due, and the seconds that it took."""
        now = self._polled_at = time.monotonic()
        self._rest = DURATION_FACTOR * duration
        self._pause = MIN_PAUSE if found else min(self._pause * 2, self._max_pause)
        # Runners that were started together must not poll together.
        self._next = now + self._pause * random.uniform(0.8, 1.2)  # noqa: S311  # spreads load, guards nothing
        self._due_at = float("inf") if due_in is None else now + due_in

    def poll_by(self, due_at: float) -> None:
        """Poll at ``due_at`` at the latest."""
        self._due_at = min(self._due_at, due_at)

    @property
    def is_rested(self) -> bool:
        """Whether a busy runner may poll again after its last poll."""
        return time.monotonic() >= self._polled_at + self._rest

    def is_due(self) -> bool:
        """Whether it is time to poll."""
        return time.monotonic() >= self.next_poll

    def is_due_while_busy(self, *, is_requested: bool) -> bool:
        """Whether to poll although the slots have enough to do: a task is or may be due, or a poll was requested."""
        now = time.monotonic()
        due = now if is_requested else self._due_at
        is_due = now >= self._polled_at + self._busy_interval or now >= max(due, self._polled_at + MIN_PAUSE)
        return is_due and self.is_rested
