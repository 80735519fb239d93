"""How many short tasks are started ahead of the slots, so that these need not wait for the database."""

from __future__ import annotations

from typing import Final

#: Seconds that a task which was started ahead of its slot is to wait for it, as a rule.
TARGET_WAIT: Final = 0.008

#: Seconds after which one that still waits is given back, for the bodies before it take longer than expected.
MAX_WAIT: Final = 0.05

#: How much the newest body counts in the averages.
_WEIGHT: Final = 1 / 16


#: How many times too long for anything to be ahead of them bodies are taken to be, until some have ended.
_INITIAL_FACTOR: Final = 2


class StartAheadTuner:
    """Learns from the bodies that have ended. Durations are seconds.

    What waits is gone after ``WAIT`` if there is as much of it as the slots get through in that time. So there is
    nothing ahead of bodies that take much longer, and nothing is hidden from other workers; of bodies that take
    microseconds there is as much as ``most`` allows. Threads share an interpreter, so the slots may get through less
    than their number says: how long the last ones really waited counts as well.
    """

    def __init__(self, slots: int, most: int) -> None:
        self._slots = slots
        self._max_size = most
        self._waited = 0.0
        self._seen = 0
        self._duration = _INITIAL_FACTOR * TARGET_WAIT * slots
        self.size = 0

    def record(self, waited: float, took: float) -> None:
        """A body has waited for its slot, and taken it, for so long."""
        self._seen += 1
        weight = max(_WEIGHT, 1 / self._seen)  # the first ones say it all
        self._waited += (waited - self._waited) * weight
        self._duration += (took - self._duration) * weight

    def adapt(self) -> None:
        """Set ``size`` by what was learned."""
        room = self._slots * TARGET_WAIT / max(self._duration, 1e-6)
        if self._waited > TARGET_WAIT:
            room = min(room, (self._slots + self.size) * TARGET_WAIT / self._waited)
        self.size = min(self._max_size, int(room))

    def reset(self) -> None:
        """Start nothing ahead until bodies have been short again for a while."""
        self._duration = _INITIAL_FACTOR * TARGET_WAIT * self._slots
        self.size = 0
