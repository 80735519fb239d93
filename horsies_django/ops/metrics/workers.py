"""Metrics of workers and the tasks that they hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from django.db.models import Count, Q, QuerySet

from ...core.backends import ConfiguredBackend
from ...core.compat import task_backends
from ...core.options import RecoveryOptions
from ...core.status import TaskStatus
from ...db.expressions import SecondsUntil
from ...db.fields import strings_in
from ...models import Task, Worker

#: Maximum number of workers in a snapshot.
MAX_WORKERS = 200


@dataclass(frozen=True, slots=True)
class HeldTasks:
    """Counts of held tasks by queue and status, and by worker and kind (True: coroutines)."""

    queues: Counter[tuple[str, str]] = field(default_factory=Counter)
    workers: Counter[tuple[str, bool]] = field(default_factory=Counter)

    def of_queue(self, queue: str) -> int:
        """Return how many tasks of a queue are held."""
        return self.queues[queue, TaskStatus.CLAIMED] + self.queues[queue, TaskStatus.RUNNING]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker: its slots of each kind and how many are taken, its queues, and the seconds since its last heartbeat.

    It sends a heartbeat every ``beat_interval`` seconds. ``is_alive`` unless it is offline. ``stalled_for`` is the
    seconds for which it has stood still, since ``stalled_since``; None: it goes on.
    """

    id: str
    name: str
    hostname: str
    pid: int
    threads: int | None
    threads_taken: int
    async_slots: int | None
    async_slots_taken: int
    queues: tuple[str, ...]
    excluded_queues: tuple[str, ...]
    beat_ago: float
    beat_interval: float
    liveness: Liveness
    is_alive: bool
    is_stopping: bool
    is_quiet: bool
    stalled_for: float | None
    last_beat_at: datetime
    stalled_since: datetime | None

    @property
    def is_responding(self) -> bool:
        """Whether its heartbeats arrive."""
        return self.liveness is Liveness.ONLINE

    @property
    def is_online(self) -> bool:
        """Whether its heartbeats arrive and it does not stand still."""
        return self.is_responding and self.stalled_for is None

    @property
    def may_claim(self) -> bool:
        """Whether it is alive and goes on, and is neither stopping nor quiet."""
        return self.is_alive and self.stalled_for is None and not self.is_stopping and not self.is_quiet

    @property
    def held(self) -> int:
        """How many tasks it holds."""
        return self.threads_taken + self.async_slots_taken

    @property
    def load(self) -> float | None:
        """The higher share of taken slots of the two kinds, from 0 to 1; None if its slots are not known."""
        kinds = ((self.threads_taken, self.threads), (self.async_slots_taken, self.async_slots))
        return max((min(1.0, taken / slots) for taken, slots in kinds if slots), default=None)

    @property
    def shown_load(self) -> str:
        """The taken slots of each kind as text, coroutines only if there are any."""
        threads = f"{self.threads_taken}/{'?' if self.threads is None else self.threads}"
        if not self.async_slots_taken:
            return threads
        return f"{threads} + {self.async_slots_taken}/{'?' if self.async_slots is None else self.async_slots} async"

    def serves(self, queue: str) -> bool:
        """Return whether it takes tasks from this queue."""
        return queue not in self.excluded_queues and (not self.queues or queue in self.queues)

    def as_json(self) -> dict[str, Any]:
        """Return the dict that ``horsies_status --json`` prints. Times are in seconds."""
        facts = asdict(self) | {"held": self.held, "load": self.load}
        return {name: fact for name, fact in facts.items() if name not in ("last_beat_at", "stalled_since")}


def count_held(database: str, only: Q | None = None) -> HeldTasks:
    """Count the held tasks, or of them those that meet ``only``.

    Their index has no more rows than the workers have slots.
    """
    held = HeldTasks()
    rows = Task.objects.using(database).active().filter(only or Q()).order_by()
    columns = ("status", "queue_name", "claimed_by_worker_id", "is_async")
    for status, queue, worker, is_async, count in rows.values_list(*columns).annotate(Count("pk")):
        held.queues[queue, status] += count
        held.workers[worker or "", is_async] += count
    return held


def worker_statuses(database: str, recovery: RecoveryOptions, held: HeldTasks) -> list[WorkerStatus]:
    """Return the workers, those with the latest heartbeat first."""
    workers = with_times(Worker.objects.using(database)).order_by("-last_beat_at", "pk")[:MAX_WORKERS]
    return [worker_status(worker, held, recovery) for worker in workers]


def with_times(workers: QuerySet[Worker]) -> QuerySet[Any]:
    """Annotate the times that :func:`worker_status` needs, by the database's clock."""
    annotated: QuerySet[Any] = workers.annotate(
        beat_in=SecondsUntil("last_beat_at"), stalled_in=SecondsUntil("stalled_since")
    )
    return annotated


def worker_status(worker: Any, held: HeldTasks, default: RecoveryOptions | None = None) -> WorkerStatus:
    """Return the status of a row with these times; ``default`` if these settings do not have its backend."""
    recovery = _recovery_of(worker.backend, default)
    beat_ago = max(0.0, -worker.beat_in)
    liveness = liveness_of(beat_ago, recovery)
    return WorkerStatus(
        worker.pk,
        worker.name,
        worker.hostname,
        worker.pid,
        worker.threads,
        held.workers[worker.pk, False],
        worker.async_slots,
        held.workers[worker.pk, True],
        tuple(strings_in(worker.queues)),
        tuple(strings_in(worker.excluded_queues)),
        beat_ago,
        recovery.heartbeat_interval,
        liveness,
        liveness is not Liveness.OFFLINE,
        worker.stop_requested_at is not None,
        worker.quiet_since is not None,
        None if worker.stalled_in is None else max(0.0, -worker.stalled_in),
        worker.last_beat_at,
        worker.stalled_since,
    )


def _recovery_of(backend: str, default: RecoveryOptions | None) -> RecoveryOptions:
    configured_backend = task_backends[backend] if backend in task_backends.settings else None
    if isinstance(configured_backend, ConfiguredBackend):
        return configured_backend.parsed.options.recovery
    return default or RecoveryOptions()


#: A worker that has been silent for more than this many heartbeat intervals is not responding.
MISSED_INTERVALS: Final = 2


class Liveness(StrEnum):
    """The state of a worker by its heartbeats. Of one that is offline, the reaper recovers the tasks."""

    ONLINE = "online"
    NOT_RESPONDING = "not responding"
    OFFLINE = "offline"


def liveness_of(silence: float, recovery: RecoveryOptions) -> Liveness:
    """Return the state of a worker whose last heartbeat is ``silence`` seconds old by the database's clock."""
    if silence >= recovery.stale_after:
        return Liveness.OFFLINE
    return Liveness.NOT_RESPONDING if silence > MISSED_INTERVALS * recovery.heartbeat_interval else Liveness.ONLINE
