"""The lookout: what there is to claim, what is due, and what a worker is told by the tables."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .claim_budget import Allowance
from .config import Plan
from .limit_releaser import Gates
from .listener import Listener
from .poll_interval import AT_LEAST, SOON, WOKEN, Cadence
from .selector import LONGEST, LONGEST_UNTOLD
from .slots import Lane
from .store import Books, View


class Lookout:
    """Looks when the cadence says so, or when it ``is_asked``."""

    def __init__(
        self,
        plan: Plan,
        books: Books,
        lanes: Sequence[Lane],
        allowance: Allowance,
        listener: Listener,
        cadence: Cadence,
        gates: Gates,
    ) -> None:
        self._plan = plan
        self._books = books
        self._lanes = lanes
        self._allowance = allowance
        self._listener = listener
        self._cadence = cadence
        self._gates = gates
        self.is_asked = True
        self.is_held_back = False
        self._has_found = False

    @property
    def cannot_wait(self) -> bool:
        """Whether to look although there is enough to do."""
        return self._allowance.has_room() and self._cadence.cannot_wait(is_asked=self.is_asked)

    def is_due_first(self, *, was_busy: bool) -> bool:
        """Whether to look before the next claim.

        What queues say may have changed; and a busy worker claims from the queues that it knows of: it is to hear of
        others. Who was just woken claims at once.
        """
        if self._books.doubts_rules:
            return self._allowance.has_room()
        return was_busy and self.cannot_wait

    @property
    def is_due(self) -> bool:
        """Whether to look: when the cadence says so, and from time to time even if the slots are never idle."""
        if any(lane.hot and lane.room for lane in self._lanes):
            return self.cannot_wait
        return self._allowance.has_room() and (self.is_asked or self._cadence.is_due())

    def look(self) -> View:
        """Look; let in what has become due, and let the lanes know where there is something."""
        view = self._books.look(self._lanes)
        self.is_asked = False
        self.is_held_back = view.is_held_back
        is_told = self._listener.alive
        self._cadence.longest = self._plan.poll_interval * self._plan.processes * (WOKEN if is_told else 1)
        self._cadence.at_least = AT_LEAST if is_told else SOON
        self._books.shares.longest = LONGEST if is_told else LONGEST_UNTOLD
        if is_overdue := _has_come(view.deferred_in):
            with self._books.transaction():
                self.is_asked = self._books.undefer() > 0
        for lane, queues in zip(self._lanes, view.due, strict=True):
            lane.know(queues, is_all=not view.is_partial)
        if view.is_partial:
            self._look_round(view)
        self._cadence.looked(found=view.anything, due_in=None if is_overdue else view.deferred_in)
        if _has_come(view.gates_in):
            self._gates.put(self._books.gates_due())
        elif view.gates_in is not None:
            self._cadence.due_at(time.monotonic() + view.gates_in)
        self._cadence.due_at(self._books.shares.opens_at)
        return view

    def _look_round(self, view: View) -> None:
        """Go on to the queues that this look has not seen, until there was nothing in any of them."""
        is_hot = any(lane.hot for lane in self._lanes)
        self._has_found = self._has_found or is_hot
        self.is_asked = self.is_asked or (not is_hot and (view.goes_on or self._has_found))
        self._has_found = self._has_found and view.goes_on


def _has_come(seconds: float | None) -> bool:
    return seconds is not None and seconds <= 0
