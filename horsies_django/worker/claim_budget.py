"""The allowance: how much a runner may still claim."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .config import Plan, Until
from .exit_reason import Leaving
from .slots import Lane
from .watchdog import Watch


class Allowance:
    """Runs out when the runner is told to stop, retires, has had as many tasks as it may, or has grown too large.

    ``stop_by`` is a moment of the monotonic clock; ``retired`` says why the runner leaves though nobody told it to.
    """

    def __init__(self, plan: Plan, lanes: Sequence[Lane], watch: Watch) -> None:
        self._plan = plan
        self._lanes = lanes
        self._watch = watch
        self.claimed = 0
        self.stop_by: float | None = None
        self.retired: Leaving | None = None

    @property
    def may_claim(self) -> bool:
        """Whether anything may be claimed."""
        once = self._plan.until is Until.ONE_CLAIM and self.claimed > 0
        return self.stop_by is None and self.retired is None and not self.is_spent and not once

    @property
    def is_over(self) -> bool:
        """Whether the time for bodies to end is over, too."""
        return self.stop_by is not None and time.monotonic() >= self.stop_by

    @property
    def leaving(self) -> Leaving:
        """Why the runner leaves, if it does."""
        if self.stop_by is not None and self.retired not in (Leaving.DISMISSED, Leaving.FORBIDDEN):
            return Leaving.DONE
        return self.retired or (Leaving.SPENT if self.is_spent else Leaving.DONE)

    def has_room(self) -> bool:
        """Whether there is a slot for something, too."""
        return self.may_claim and any(lane.room for lane in self._lanes)

    def wants_relief(self) -> bool:
        """Whether to have a fresh runner beside this one, which has slots to spare and waits for a long body.

        One whose slots of a kind are all taken is not relieved: with one thread there is one body at a time.
        """
        is_waiting = self.is_spent and self.retired is None and self.stop_by is None
        return is_waiting and any(lane.running for lane in self._lanes) and all(lane.free > 0 for lane in self._lanes)

    def room_in(self, lane: Lane) -> int:
        """How many tasks may be claimed for a lane."""
        limit = self._plan.max_tasks_per_child
        return lane.room if limit is None else min(lane.room, max(0, limit - self.claimed))

    @property
    def is_spent(self) -> bool:
        """Whether the runner has had as many tasks, or takes as much memory, as it may."""
        limit = self._plan.max_tasks_per_child
        return (limit is not None and self.claimed >= limit) or (self._watch.is_too_large and self.claimed > 0)
