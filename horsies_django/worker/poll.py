"""The poll of a runner: it reads in one statement which queues hold work, what is due, and what its row asks of it.

Tasks that concurrency limits block are released here too, once a task of this worker has ended and made room.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

from ..db.errors import row_by_row
from ..db.notifications import wake_after_commit
from ..models import Limit
from ..models.queue_scan import ScanResult
from ..models.release_blocked import KEYS_PER_TRANSACTION, NONE_RELEASED, Released, release_waiting
from ..models.worker import WorkerRequest
from .runner_state import NEVER, RunnerState
from .slot_pool import SlotPool

logger = logging.getLogger("horsies_django.worker")

#: Seconds from finding work to the next poll. Each poll that finds none doubles the pause.
MIN_PAUSE: Final = 0.025

#: How much longer a runner that gets notifications may pause: it polls only for what was never notified, or got lost.
NOTIFIED_FACTOR: Final = 5

#: Seconds between the polls of a runner that gets notifications and always has enough to do: for tasks that became due
#: meanwhile and queues that were resumed. Without notifications such a runner polls every ``MIN_PAUSE``.
BUSY_INTERVAL: Final = 1.0

#: A busy runner waits at least so many times the duration of its last poll, and an idle one so many times, unless a
#: task is due. A poll is long while an old transaction keeps the index entries of tasks that have ended.
DURATION_FACTOR: Final = 20
IDLE_DURATION_FACTOR: Final = 5

#: Seconds after which a release starts no further batch: executions end meanwhile.
TIME_SLICE: Final = 0.005

#: While executions run, limits with many blocked tasks get one of this many time slices.
SLICE_SHARE: Final = 5

#: Seconds until the next attempt at a limit that another worker is releasing at.
LOCKED_PAUSE: Final = 0.005


class PollInterval:
    """The pause between two polls: short after work was found, longer after each poll that finds none.

    Times are monotonic, in seconds. ``longest`` is the configured poll interval, and ``processes`` the number of
    runners that share the polling.
    """

    def __init__(self, longest: float, processes: int) -> None:
        self._longest = longest * processes
        self.longest_pause = longest  # between two polls of an idle runner
        self._busy_interval = BUSY_INTERVAL
        self._pause = MIN_PAUSE
        self._next = 0.0
        self._due_at = NEVER
        self._polled_at = -NEVER
        self._duration = 0.0
        self._notified_queue: str | None = None

    @property
    def next_poll(self) -> float:
        """When to poll if nothing happens before."""
        return min(max(self._next, self._polled_at + IDLE_DURATION_FACTOR * self._duration), self._due_at)

    def set_notified(self, is_notified: bool) -> None:
        """Poll less often while notifications arrive."""
        self.longest_pause = self._longest * (NOTIFIED_FACTOR if is_notified else 1)
        self._busy_interval = BUSY_INTERVAL if is_notified else MIN_PAUSE

    def record_notification(self, queue_name: str | None = None) -> None:
        """Poll soon, and soon again: a sender skips notifications that follow each other too closely.

        While one queue alone is notified, each claim from it finds what was skipped before; then a poll is only needed
        after the last notification, and now and then for other queues.
        """
        now = time.monotonic()
        is_same, self._notified_queue = queue_name == self._notified_queue is not None, queue_name
        self._pause = MIN_PAUSE
        postponed = max(self._next, self._polled_at + self._busy_interval) if is_same else self._next
        self._next = min(postponed, now + MIN_PAUSE)

    def record_claim(self) -> None:
        """Poll again soon: there was work."""
        self._pause = MIN_PAUSE
        self._next = time.monotonic() + MIN_PAUSE

    def record_poll(self, *, has_tasks: bool, due_in: float | None, duration: float = 0.0) -> None:
        """Record a poll: whether it found work, in how many seconds more is due, and the seconds that it took."""
        now = self._polled_at = time.monotonic()
        self._duration = duration
        self._pause = MIN_PAUSE if has_tasks else min(self._pause * 2, self.longest_pause)
        # Runners that were started together must not poll together.
        self._next = now + self._pause * random.uniform(0.8, 1.2)  # noqa: S311  # spreads load, guards nothing
        self._due_at = NEVER if due_in is None else now + due_in

    def poll_by(self, due_at: float) -> None:
        """Poll at ``due_at`` at the latest."""
        self._due_at = min(self._due_at, due_at)

    @property
    def is_rested(self) -> bool:
        """Whether a busy runner may poll again after its last poll."""
        return time.monotonic() >= self._polled_at + DURATION_FACTOR * self._duration

    def is_due_while_busy(self, *, is_requested: bool) -> bool:
        """Whether to poll although the slots have enough to do: a task is or may be due, or a poll was requested."""
        now = time.monotonic()
        due = now if is_requested else self._due_at
        is_due = now >= self._polled_at + self._busy_interval or now >= max(due, self._polled_at + MIN_PAUSE)
        return is_due and self.is_rested


class LimitReleaser:
    """Remembers the keys of limits that may have room, and releases blocked tasks there. It waits for no lock.

    A reaper checks the limits that a dead worker leaves behind. Times are monotonic, in seconds.
    """

    def __init__(self, database: str, pools: Sequence[SlotPool]) -> None:
        self._release = partial(release_waiting, database)
        self._pools = pools
        self._keys: dict[str, None] = {}
        self._paused_until = float("-inf")
        self.next_at = float("inf")

    def __bool__(self) -> bool:
        """Whether any limit is left to check."""
        return bool(self._keys)

    @property
    def is_due(self) -> bool:
        """Whether it is time to check a limit."""
        return time.monotonic() >= self.next_at

    def add(self, keys: Iterable[str | None]) -> None:
        """Check the limits of these keys soon."""
        if new := {key: None for key in keys if key is not None}:
            self._keys |= new
            self.next_at = min(self.next_at, max(self._paused_until, time.monotonic()))

    def release(self) -> Iterator[Released]:
        """Release blocked tasks at limits for one time slice; yield what each transaction has released."""
        began = now = time.monotonic()
        busy = dict[str, None]()
        while self._keys and now < began + TIME_SLICE:
            batch = list(islice(self._keys, KEYS_PER_TRANSACTION))
            parts = row_by_row(batch, self._release, _leave)
            for key in batch:
                del self._keys[key]
            busy |= dict.fromkeys(key for part in parts for key in part.busy)
            yield from parts
            now = time.monotonic()
        has_running = any(pool.running for pool in self._pools)
        self._paused_until = now + (now - began) * (SLICE_SHARE - 1) if self._keys and has_running else now
        self._keys |= busy
        self.next_at = max(self._paused_until, now + LOCKED_PAUSE if busy else now) if self._keys else float("inf")


class Poller:
    """Decides when to poll, polls, and releases what has become due or what limits have room for."""

    def __init__(self, state: RunnerState) -> None:
        self._state = state
        self.interval = PollInterval(state.config.poll_interval, state.config.processes)
        self.releaser = LimitReleaser(state.config.database, state.pools)
        self._has_found_work = False  # in this round of polls that each see only some of the queues

    def is_due_before_claim(self, *, was_busy: bool) -> bool:
        """Whether to poll before the next claim.

        Queue policies may have changed; and a busy worker claims from queues that it knows, so it must learn of others.
        A worker that a notification has just woken claims at once.
        """
        if self._state.store.are_policies_stale:
            return self._state.has_room()
        return was_busy and self._is_due_while_busy()

    def is_due(self) -> bool:
        """Whether to poll now: by the interval, and now and then even if the slots are never idle."""
        is_requested = self._state.is_poll_requested
        if any(pool.queues for pool in self._state.pools):
            if any(pool.queues and pool.room for pool in self._state.pools):
                return self._is_due_while_busy()
            is_requested = is_requested and self.interval.is_rested  # all slots are taken, and another pool has room
        return (is_requested or time.monotonic() >= self.interval.next_poll) and self._state.has_room()

    def _is_due_while_busy(self) -> bool:
        is_due = self.interval.is_due_while_busy(is_requested=self._state.is_poll_requested)
        return is_due and self._state.has_room()

    def poll(self) -> WorkerRequest:
        """Poll, release deferred tasks that have become due, and return what the worker's row asks of it."""
        state, store = self._state, self._state.store
        began = time.monotonic()
        scan = store.scan(state.pools)
        is_overdue, released = _is_due(scan.deferred_in), 0
        if is_overdue:
            with store.transaction():
                released = store.tasks.make_due_claimable()
        due_limits = Limit.objects.using(state.config.database).due_keys() if _is_due(scan.release_in) else ()
        duration = time.monotonic() - began
        state.is_poll_requested = released > 0
        for part in (self.interval, store.selector):
            part.set_notified(state.listener.is_alive)
        has_work = self._set_queues(scan) or is_overdue or _is_due(scan.release_in)
        if scan.is_partial:
            self._continue_round(scan)
        self.interval.record_poll(
            has_tasks=has_work, due_in=None if is_overdue else scan.deferred_in, duration=duration
        )
        self.releaser.add(due_limits)
        if scan.release_in is not None and scan.release_in > 0:
            self.interval.poll_by(time.monotonic() + scan.release_in)
        self.interval.poll_by(store.selector.unblocks_at)
        return scan.request

    def _set_queues(self, scan: ScanResult) -> bool:
        """Tell each pool from which queues to claim; return whether any did not refuse when it was last asked."""
        state, selector = self._state, self._state.store.selector
        may_have_tasks = state.is_held_back = False
        for pool, waiting in zip(state.pools, scan.queues, strict=True):
            served = [queue for queue in waiting if not queue.is_paused and state.config.serves(queue.queue_name)]
            names = selector.in_order([queue.queue_name for queue in served])
            queues = selector.unblocked(names)
            pool.set_queues(queues, is_all=not scan.is_partial)
            may_have_tasks = may_have_tasks or selector.may_have_tasks(queues)
            state.is_held_back = state.is_held_back or selector.will_resume(set(names).difference(queues))
        return may_have_tasks

    def _continue_round(self, scan: ScanResult) -> None:
        """Poll on for the queues that this poll has not seen, until none of them holds work."""
        state = self._state
        has_work = any(pool.queues for pool in state.pools)
        self._has_found_work = self._has_found_work or has_work
        if not has_work and (scan.continues or self._has_found_work):
            state.is_poll_requested = True
        self._has_found_work = self._has_found_work and scan.continues

    def release_blocked(self) -> bool:
        """Release tasks at limits that may have room, for one time slice."""
        for released in self.releaser.release():
            self._apply_released(released)
        return True

    def _apply_released(self, released: Released) -> None:
        """Claim the released tasks soon, and notify other workers of those for which there is no room here."""
        state = self._state
        if released.recheck_in is not None:
            self.interval.poll_by(time.monotonic() + released.recheck_in)
        for (queue, is_async), count in released.routes.items():
            state.mark_ready(queue, is_async)
            may_claim = state.may_claim and state.config.serves(queue)
            room = sum(pool.room for pool in state.pools if pool.is_async == is_async) if may_claim else 0
            if count > room:
                wake_after_commit(state.config.database, queue, is_async=is_async)


def _is_due(seconds: float | None) -> bool:
    return seconds is not None and seconds <= 0


def _leave(key: str, error: Exception) -> Released:
    logger.error("limit can't be released key=%r: left to the reaper", key, exc_info=error)
    return NONE_RELEASED
