"""Detects that a runner is stalled: a function holds the interpreter's lock, or a signal has stopped the process."""

from __future__ import annotations

import math
import time
from typing import Final

from ..core.sync import MAX_WAIT
from .config import WorkerConfig
from .started_registry import StartedRegistry

#: Seconds between two pulses of a runner.
PULSE_INTERVAL: Final = 1.0

#: The shortest silence in seconds that counts as a stall, however short the timeouts: pulses come once a second.
MIN_SILENCE: Final = 3.0

#: The supervisor sends a heartbeat for a runner that has sent none for this many heartbeat intervals.
LATE_FACTOR: Final = 1.25


class StallDetector:
    """Watches the pulse of one runner, for its supervisor.

    Only time during which the supervisor ran counts as silence: two checks that are further apart than the supervisor
    ever waits count as one wait. So runners have their full time to show that they are alive after a machine was
    suspended or a container paused.
    """

    def __init__(self, config: WorkerConfig, started_registry: StartedRegistry) -> None:
        self._started_registry = started_registry
        self._grace = config.timeout_grace
        self._stall_timeout = max(config.max_stall, MIN_SILENCE)
        self._beat_every = config.options.recovery.heartbeat_interval
        self._pulse = 0.0
        self._checked_at = time.monotonic()
        self._silent = 0.0
        self._next_heartbeat = 0.0

    def check(self) -> str | None:
        """Check once; return why the runner has to be killed, or None."""
        passed = min(time.monotonic() - self._checked_at, MAX_WAIT)
        self._checked_at = time.monotonic()
        pulse = self._started_registry.last_pulse
        is_alive, self._pulse = pulse != self._pulse, pulse
        self._silent = 0.0 if is_alive or not pulse else self._silent + passed
        if self._silent >= self._stall_timeout:
            return f"it has not responded for {self._silent:.0f} s"
        if self._silent >= max(self._grace, MIN_SILENCE) and self._started_registry.is_over_limit(self._grace):
            return f"it has not responded for {self._silent:.0f} s, and one of its tasks is over the time limit"
        return None

    @property
    def is_healthy(self) -> bool:
        """Whether the runner is registered and its interpreter ran at the last check, or shortly before."""
        return self._started_registry.is_registered and self._silent < MIN_SILENCE

    @property
    def stalled_at(self) -> float | None:
        """When a registered runner began to stand still; None if it goes on. Monotonic, in seconds."""
        is_stalled = self._started_registry.is_registered and self._silent >= MIN_SILENCE
        return self._checked_at - self._silent if is_stalled else None

    @property
    def heartbeat_at(self) -> float:
        """When the supervisor has to send a heartbeat for the runner; infinite until the runner's first one."""
        last_heartbeat = self._started_registry.last_heartbeat
        return (
            max(last_heartbeat + LATE_FACTOR * self._beat_every, self._next_heartbeat) if last_heartbeat else math.inf
        )

    def is_heartbeat_due(self) -> bool:
        """Whether the supervisor has to send a heartbeat for the runner now."""
        if time.monotonic() < self.heartbeat_at:
            return False
        self._next_heartbeat = time.monotonic() + self._beat_every
        return True
