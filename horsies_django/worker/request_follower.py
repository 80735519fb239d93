"""Reads what operators and signals ask of a runner: to stop, to be quiet, or to claim again."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from ..models.claims import WorkerInfo
from ..models.worker import WorkerRequest
from .loop_state import NEVER, LoopState
from .poll_interval import PollInterval
from .slot_pool import SlotPool
from .started_registry import StartedRegistry
from .store import WorkerStore

logger = logging.getLogger("horsies_django.worker")

#: Minimum seconds between two reads of the worker's own row, however many notifications say that it asks for something.
REQUEST_CHECK_INTERVAL: Final = 0.5


class RequestFollower:
    """Decides which request changes what the runner does. The producer makes the change.

    Requests stand in the worker's row, which heartbeats and polls return too, or come by signal. A signal overrides the
    row until it is recorded there. Times are monotonic, in seconds.
    """

    def __init__(
        self,
        runner: WorkerInfo,
        store: WorkerStore,
        pools: Sequence[SlotPool],
        poll_interval: PollInterval,
        started_registry: StartedRegistry | None,
        state: LoopState,
    ) -> None:
        self._runner = runner
        self._store = store
        self._pools = pools
        self._poll_interval = poll_interval
        self._started_registry = started_registry
        self._state = state
        self._checked_at = -NEVER
        self.next_at = 0.0 if state.is_quiet else NEVER  # when to read the row
        self.record_at = NEVER  # when to write to the row what the last signal asked for

    @property
    def is_recorded(self) -> bool:
        """Whether the row has what the last signal asked for."""
        return self.record_at == NEVER

    def follow(self, request: WorkerRequest) -> WorkerRequest | None:
        """Return the request of the worker's row if it changes something: STOP, QUIET, or CONTINUE after QUIET."""
        if request is WorkerRequest.STOP:
            return request
        if request is WorkerRequest.GONE or not self.is_recorded:
            return None
        return self._set_quiet(request)

    def follow_signal(self, *, is_quiet: bool) -> WorkerRequest | None:
        """Return what a signal changes, as :meth:`follow` does. It has to be recorded next."""
        change = self._set_quiet(WorkerRequest.QUIET if is_quiet else WorkerRequest.CONTINUE)
        self.record_at = 0.0
        return change

    def record(self) -> bool:
        """Write to the worker's row whether it is quiet, after a signal; if it is locked, at the next heartbeat."""
        is_recorded = self._store.record_quiet(is_quiet=self._state.is_quiet)
        self.record_at = NEVER if is_recorded else self._state.next_heartbeat
        return True

    def check_soon(self) -> None:
        """Read the worker's row soon: a notification says that it asks for something."""
        self.next_at = max(time.monotonic(), self._checked_at + REQUEST_CHECK_INTERVAL)

    def check(self) -> WorkerRequest | None:
        """Read the worker's row, and return what it changes.

        A quiet worker does not poll. So it reads this row as often.
        """
        self.next_at, self._checked_at = NEVER, time.monotonic()
        change = self.follow(self._store.request())
        if self._state.is_quiet and change is not WorkerRequest.CONTINUE:
            self._check_at_poll_interval()
        return change

    def log_quiet(self) -> None:
        """Log that the worker is quiet."""
        running = sum(len(pool.running) for pool in self._pools)
        logger.info("worker quiet id=%s running=%d: it claims nothing until resumed", self._runner.worker_id, running)

    def _set_quiet(self, request: WorkerRequest) -> WorkerRequest | None:
        """Return the request, QUIET or CONTINUE, if the worker is not so already, and log it."""
        is_quiet = request is WorkerRequest.QUIET
        if self._state.is_quiet == is_quiet or self._state.stop_by is not None:
            return None
        if self._started_registry is not None:
            self._started_registry.record_quiet(is_quiet)
        if is_quiet:
            self.log_quiet()
            self._check_at_poll_interval()
        else:
            logger.info("worker resumed id=%s", self._runner.worker_id)
        return request

    def _check_at_poll_interval(self) -> None:
        self.next_at = time.monotonic() + self._poll_interval.longest_pause
