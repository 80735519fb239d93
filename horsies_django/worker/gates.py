"""The gates that a worker looks at: those of the limits of which a task of its own has just ended, say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ..models.gates import Admitted
from .allowance import Allowance
from .books import Books
from .lanes import Lane
from .plan import Plan

#: Gates that are looked at in one turn: bodies end meanwhile.
AT_ONCE: Final = 20

#: Seconds until the next try at a gate where somebody else is letting in.
PAUSE: Final = 0.005


class Gates:
    """Lets in for this worker, and waits for nobody. What it has not come to when it dies a reaper does."""

    def __init__(
        self,
        plan: Plan,
        books: Books,
        lanes: Sequence[Lane],
        allowance: Allowance,
        due_at: Callable[[float], None],
    ) -> None:
        self._plan = plan
        self._books = books
        self._lanes = lanes
        self._allowance = allowance
        self._due_at = due_at
        self._keys: set[str] = set()
        self.next = float("inf")

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._keys)

    @property
    def is_due(self) -> bool:
        """Whether it is time to look at one."""
        return time.monotonic() >= self.next

    def put(self, keys: Iterable[str | None]) -> None:
        """Look at these soon."""
        if some := {key for key in keys if key is not None}:
            self._keys |= some
            self.next = time.monotonic()

    def open(self) -> int:
        """Let in at some of them; return how many were let in."""
        total = 0
        for key in sorted(self._keys)[:AT_ONCE]:
            admitted = self._books.admit(key)
            if not admitted.is_busy:
                self._keys.discard(key)
                total += admitted.lanes.total()
                self._tell(admitted)
        self.next = time.monotonic() + PAUSE if self._keys else float("inf")
        return total

    def _tell(self, admitted: Admitted) -> None:
        """Claim them soon, and tell others of what is more than there is room for here."""
        if admitted.again_in is not None:
            self._due_at(time.monotonic() + admitted.again_in)
        for (queue, is_async), count in admitted.lanes.items():
            room = 0
            for lane in self._lanes:
                if lane.is_async == is_async and self._plan.serves(queue):
                    lane.heat(queue)
                    room = lane.room if self._allowance.may_claim else 0
            if count > room:
                self._books.tell_others([(queue, is_async)])
