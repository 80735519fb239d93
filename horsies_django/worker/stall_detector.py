"""Whether a runner stands still: a body holds the interpreter's lock, or a signal has stopped the process."""

from __future__ import annotations

import math
import time
from typing import Final

from ..core.sync import MAX_WAIT
from .config import WorkerConfig
from .started_registry import StartedRegistry

#: Seconds between two pulses of a runner.
PULSE_INTERVAL: Final = 1.0

#: Seconds without a pulse that a runner always has, however short the thresholds and the grace: it gives one a second.
MIN_SILENCE: Final = 3.0

#: Beat intervals without a beat of the runner's own after which its supervisor beats for it.
LATE_FACTOR: Final = 1.25


class StallDetector:
    """Watches the pulse of one runner, for its supervisor.

    The time of a silence is that during which the supervisor itself ran: two looks that are further apart than the
    supervisor ever waits count as one wait. A machine that was suspended, or a container that was paused, so gives its
    runners all their time to show that they are alive.
    """

    def __init__(self, config: WorkerConfig, started_registry: StartedRegistry) -> None:
        self._started_registry = started_registry
        self._grace = config.timeout_grace
        self._stall_timeout = max(config.max_stall, MIN_SILENCE)
        self._beat_every = config.options.recovery.beat_interval
        self._pulse = 0.0
        self._looked_at = time.monotonic()
        self._silent = 0.0
        self._next_heartbeat = 0.0

    def check(self) -> str | None:
        """Look once; return why the runner has to be killed, or None."""
        passed = min(time.monotonic() - self._looked_at, MAX_WAIT)
        self._looked_at = time.monotonic()
        pulse = self._started_registry.last_pulse
        is_alive, self._pulse = pulse != self._pulse, pulse
        self._silent = 0.0 if is_alive or not pulse else self._silent + passed
        if self._silent >= self._stall_timeout:
            return f"it has stood still for {self._silent:.0f} s"
        if self._silent >= max(self._grace, MIN_SILENCE) and self._started_registry.is_over_limit(self._grace):
            return f"it has stood still for {self._silent:.0f} s, and a body in it is over its time limit"
        return None

    @property
    def heartbeat_at(self) -> float:
        """When the supervisor has to beat for the runner, if that has not; infinite until its first beat."""
        beaten_at = self._started_registry.last_heartbeat
        return max(beaten_at + LATE_FACTOR * self._beat_every, self._next_heartbeat) if beaten_at else math.inf

    def is_heartbeat_due(self) -> bool:
        """Whether the supervisor has to beat now for the runner, which has not done so in time."""
        if time.monotonic() < self.heartbeat_at:
            return False
        self._next_heartbeat = time.monotonic() + self._beat_every
        return True
