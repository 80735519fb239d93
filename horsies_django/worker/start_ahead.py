"""How many short tasks a runner starts ahead of its slots, so that slots need not wait for the database."""

from __future__ import annotations

from typing import Final

#: Seconds that a task which was started ahead of its slot should wait for the slot.
TARGET_WAIT: Final = 0.008

#: Seconds after which a task that still waits is handed back: the tasks before it take longer than expected.
MAX_WAIT: Final = 0.05

#: Weight of the newest execution in the moving averages.
_WEIGHT: Final = 1 / 16

#: Until some executions have ended, assume that they take this many times too long for any to be started ahead.
_INITIAL_FACTOR: Final = 2


class StartAheadTuner:
    """Sets ``size``, the number of tasks to start ahead, from how long executions wait and take. Times are seconds.

    A queue of ``size`` tasks empties in ``TARGET_WAIT`` if the slots get through that many in this time. So nothing is
    started ahead of executions that take much longer, and nothing is hidden from other workers; executions of
    microseconds get as many as ``max_size`` allows. Threads share an interpreter and may get through less than their
    number suggests, so the wait that was measured counts as well.
    """

    def __init__(self, slots: int, max_size: int) -> None:
        self._slots = slots
        self._max_size = max_size
        self._waited = 0.0
        self._seen = 0
        self._duration = _INITIAL_FACTOR * TARGET_WAIT * slots
        self.size = 0

    def record(self, waited: float, took: float) -> None:
        """Add an execution that has waited for its slot, and then taken, so many seconds."""
        self._seen += 1
        weight = max(_WEIGHT, 1 / self._seen)  # a plain mean until there are enough for a moving average
        self._waited += (waited - self._waited) * weight
        self._duration += (took - self._duration) * weight

    def adapt(self) -> None:
        """Set ``size`` from the averages."""
        room = self._slots * TARGET_WAIT / max(self._duration, 1e-6)
        if self._waited > TARGET_WAIT:
            room = min(room, (self._slots + self.size) * TARGET_WAIT / self._waited)
        self.size = min(self._max_size, int(room))

    def reset(self) -> None:
        """Start nothing ahead until executions have been short again for a while."""
        self._duration = _INITIAL_FACTOR * TARGET_WAIT * self._slots
        self.size = 0
