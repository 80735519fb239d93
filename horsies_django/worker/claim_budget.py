"""How much a runner may still claim."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .config import Until, WorkerConfig
from .exit_reason import ExitReason
from .loop_state import LoopState
from .slot_pool import SlotPool


class ClaimBudget:
    """Reads from the loop's state whether the runner may claim, and how much.

    The budget runs out when the runner is stopped, retires, has had its ``max_tasks_per_child`` tasks, or takes more
    memory than ``max_memory_mb``. A quiet runner claims nothing and keeps its budget.
    """

    def __init__(self, config: WorkerConfig, pools: Sequence[SlotPool], state: LoopState) -> None:
        self._config = config
        self._pools = pools
        self._state = state

    @property
    def may_claim(self) -> bool:
        """Whether the runner may claim at all."""
        return not self._state.is_quiet and not self.has_run_out

    @property
    def has_run_out(self) -> bool:
        """Whether the runner will never claim again."""
        state = self._state
        has_claimed_once = self._config.until is Until.ONE_CLAIM and state.claimed > 0
        return state.stop_by is not None or state.exit_reason is not None or self.is_spent or has_claimed_once

    @property
    def is_quiet(self) -> bool:
        """Whether the runner claims nothing until it is resumed."""
        return self._state.is_quiet

    @property
    def is_over(self) -> bool:
        """Whether the time that a stop leaves to running executions is over."""
        return self._state.stop_by is not None and time.monotonic() >= self._state.stop_by

    @property
    def exit_reason(self) -> ExitReason:
        """Why the runner leaves, if it leaves now."""
        retired = self._state.exit_reason
        if self._state.stop_by is not None and retired not in (ExitReason.STOP_REQUESTED, ExitReason.FORBIDDEN):
            return ExitReason.DONE
        return retired or (ExitReason.SPENT if self.is_spent else ExitReason.DONE)

    @property
    def is_spent(self) -> bool:
        """Whether the runner has reached ``max_tasks_per_child`` or ``max_memory_mb``."""
        limit, claimed = self._config.max_tasks_per_child, self._state.claimed
        return (limit is not None and claimed >= limit) or (self._state.has_outgrown_memory and claimed > 0)

    def has_room(self) -> bool:
        """Whether the runner may claim and has a slot for the task."""
        return self.may_claim and any(pool.room for pool in self._pools)

    def room_in(self, pool: SlotPool) -> int:
        """How many tasks may be claimed for a pool."""
        limit = self._config.max_tasks_per_child
        return pool.room if limit is None else min(pool.room, max(0, limit - self._state.claimed))

    def wants_replacement(self) -> bool:
        """Whether to start a fresh runner beside this one, which has free slots and waits for a long execution.

        A runner whose slots of one kind are all taken gets none: ``threads=1`` promises one task at a time.
        """
        state = self._state
        is_waiting = self.is_spent and state.exit_reason is None and state.stop_by is None
        return is_waiting and any(pool.running for pool in self._pools) and all(pool.free > 0 for pool in self._pools)
