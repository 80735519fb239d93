"""The allowance: how much a runner may still claim."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .config import Until, WorkerConfig
from .exit_reason import ExitReason
from .slot_pool import SlotPool
from .watchdog import Watchdog


class ClaimBudget:
    """Runs out when the runner is told to stop, retires, has had as many tasks as it may, or has grown too large.

    ``stop_by`` is a moment of the monotonic clock; ``retired`` says why the runner leaves though nobody told it to.
    """

    def __init__(self, config: WorkerConfig, pools: Sequence[SlotPool], watchdog: Watchdog) -> None:
        self._config = config
        self._pools = pools
        self._watchdog = watchdog
        self.claimed = 0
        self.stop_by: float | None = None
        self.retired: ExitReason | None = None

    @property
    def may_claim(self) -> bool:
        """Whether anything may be claimed."""
        once = self._config.until is Until.ONE_CLAIM and self.claimed > 0
        return self.stop_by is None and self.retired is None and not self.is_spent and not once

    @property
    def is_over(self) -> bool:
        """Whether the time for bodies to end is over, too."""
        return self.stop_by is not None and time.monotonic() >= self.stop_by

    @property
    def leaving(self) -> ExitReason:
        """Why the runner leaves, if it does."""
        if self.stop_by is not None and self.retired not in (ExitReason.STOP_REQUESTED, ExitReason.FORBIDDEN):
            return ExitReason.DONE
        return self.retired or (ExitReason.WORN_OUT if self.is_spent else ExitReason.DONE)

    def has_room(self) -> bool:
        """Whether there is a slot for something, too."""
        return self.may_claim and any(pool.room for pool in self._pools)

    def wants_relief(self) -> bool:
        """Whether to have a fresh runner beside this one, which has slots to spare and waits for a long body.

        One whose slots of a kind are all taken is not relieved: with one thread there is one body at a time.
        """
        is_waiting = self.is_spent and self.retired is None and self.stop_by is None
        return is_waiting and any(pool.running for pool in self._pools) and all(pool.free > 0 for pool in self._pools)

    def room_in(self, pool: SlotPool) -> int:
        """How many tasks may be claimed for a lane."""
        limit = self._config.max_tasks_per_child
        return pool.room if limit is None else min(pool.room, max(0, limit - self.claimed))

    @property
    def is_spent(self) -> bool:
        """Whether the runner has had as many tasks, or takes as much memory, as it may."""
        limit = self._config.max_tasks_per_child
        return (limit is not None and self.claimed >= limit) or (self._watchdog.is_too_large and self.claimed > 0)
