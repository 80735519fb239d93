"""When the loop of a runner has something to do, and how long it may wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from ..core.sync import MAX_WAIT
from .claim_budget import ClaimBudget
from .limit_releaser import LimitReleaser
from .loop_state import NEVER, LoopState
from .poll_interval import PollInterval
from .queue_poller import QueuePoller
from .request_follower import RequestFollower
from .result_buffer import ResultBuffer
from .slot_pool import SlotPool
from .watchdog import Watchdog

#: Minimum seconds between two ticks while every slot has a task waiting for it.
MIN_TICK_INTERVAL: Final = 0.002

#: Seconds after which the workflow node of a running task is marked as running.
NODE_RUNNING_AFTER: Final = 0.02


class Wait(NamedTuple):
    """How long the loop may wait, in seconds, and whether it gathers results for the next tick meanwhile."""

    seconds: float
    gathers: bool = False


class LoopSchedule:
    """Reads what is due from the state, the pools and the collaborators' timers. Times are monotonic, in seconds."""

    def __init__(
        self,
        state: LoopState,
        pools: Sequence[SlotPool],
        buffer: ResultBuffer,
        budget: ClaimBudget,
        requests: RequestFollower,
        poller: QueuePoller,
        poll_interval: PollInterval,
        releaser: LimitReleaser,
        watchdog: Watchdog,
    ) -> None:
        self._state = state
        self._pools = pools
        self._buffer = buffer
        self._budget = budget
        self._requests = requests
        self._poller = poller
        self._poll_interval = poll_interval
        self._releaser = releaser
        self._watchdog = watchdog

    @property
    def is_holding(self) -> bool:
        """Whether the runner holds tasks, or results that are not stored."""
        is_busy = any(pool.running or pool.prefetched or pool.withdrawn for pool in self._pools)
        return self._state.is_in_doubt or bool(self._buffer) or is_busy

    def is_tick_due(self) -> bool:
        """Whether to write a tick now."""
        return self._has_work() and time.monotonic() >= self._next_tick_at()

    def _has_work(self) -> bool:
        may_claim = self._budget.may_claim
        starts = any(pool.startable for pool in self._pools)
        claims = may_claim and any(pool.has_work and pool.room for pool in self._pools)
        hands_back = self.has_to_hand_back and time.monotonic() >= self._state.hand_back_at
        writes = self._state.is_in_doubt or self._buffer.is_ready or hands_back
        return writes or starts or claims or time.monotonic() >= self._state.next_heartbeat

    @property
    def has_to_hand_back(self) -> bool:
        """Whether tasks have to go back to their queues."""
        may_claim = self._budget.may_claim
        return any(pool.withdrawn or (pool.prefetched and not may_claim) for pool in self._pools)

    def _next_tick_at(self) -> float:
        """When the next tick may begin: results are gathered for a while as long as each slot has a next task."""
        has_waiting = any(pool.has_waiting for pool in self._pools) and self._state.stop_by is None
        return self._state.ticked_at + MIN_TICK_INTERVAL if has_waiting else 0.0

    @property
    def mark_nodes_at(self) -> float:
        """When to mark the workflow nodes of running tasks."""
        unmarked = self._state.unmarked_nodes
        return unmarked[0].submitted_at + NODE_RUNNING_AFTER if unmarked else NEVER

    def wait(self) -> Wait:
        """Return how long there is nothing to do, if nothing arrives first."""
        if self._has_work() or self._poller.is_due:
            return Wait(max(0.0, self._next_tick_at() - time.monotonic()), gathers=True)
        state = self._state
        times = [
            state.next_heartbeat,
            self._requests.next_at,
            self._requests.record_at,
            self._watchdog.next_at,
            self._buffer.next_at,
            self.mark_nodes_at,
            self._releaser.next_at,
            time.monotonic() + MAX_WAIT,
        ]
        if self.has_to_hand_back:
            times.append(state.hand_back_at)
        if state.stop_by is not None:
            times.append(state.stop_by)
        times += [pool.withdraw_at for pool in self._pools]
        if self._budget.has_room():
            times.append(self._poll_interval.next_poll)
        return Wait(max(0.0, min(times) - time.monotonic()))
