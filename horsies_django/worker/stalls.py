"""Whether a runner stands still: a body holds the interpreter's lock, or a signal has stopped the process."""

from __future__ import annotations

import math
import time
from typing import Final

from ..core.sync import LONGEST_WAIT
from .config import Plan
from .started_registry import Begun

#: Seconds between two pulses of a runner.
PULSE: Final = 1.0

#: Seconds without a pulse that a runner always has, however short the thresholds and the grace: it gives one a second.
SILENCE: Final = 3.0

#: Beat intervals without a beat of the runner's own after which its supervisor beats for it.
LATE: Final = 1.25


class StallDetector:
    """Watches the pulse of one runner, for its supervisor.

    The time of a silence is that during which the supervisor itself ran: two looks that are further apart than the
    supervisor ever waits count as one wait. A machine that was suspended, or a container that was paused, so gives its
    runners all their time to show that they are alive.
    """

    def __init__(self, plan: Plan, begun: Begun) -> None:
        self._begun = begun
        self._grace = plan.timeout_grace
        self._stall_timeout = max(plan.longest_stall, SILENCE)
        self._beat_every = plan.options.recovery.beat_interval
        self._pulse = 0.0
        self._looked_at = time.monotonic()
        self._silent = 0.0
        self._next_beat = 0.0

    def look(self) -> str | None:
        """Look once; return why the runner has to be killed, or None."""
        passed = min(time.monotonic() - self._looked_at, LONGEST_WAIT)
        self._looked_at = time.monotonic()
        pulse = self._begun.last_pulse
        is_alive, self._pulse = pulse != self._pulse, pulse
        self._silent = 0.0 if is_alive or not pulse else self._silent + passed
        if self._silent >= self._stall_timeout:
            return f"it has stood still for {self._silent:.0f} s"
        if self._silent >= max(self._grace, SILENCE) and self._begun.is_over_limit(self._grace):
            return f"it has stood still for {self._silent:.0f} s, and a body in it is over its time limit"
        return None

    @property
    def beat_at(self) -> float:
        """When the supervisor has to beat for the runner, if that has not; infinite until its first beat."""
        beaten_at = self._begun.last_beat
        return max(beaten_at + LATE * self._beat_every, self._next_beat) if beaten_at else math.inf

    def is_beat_due(self) -> bool:
        """Whether the supervisor has to beat now for the runner, which has not done so in time."""
        if time.monotonic() < self.beat_at:
            return False
        self._next_beat = time.monotonic() + self._beat_every
        return True
