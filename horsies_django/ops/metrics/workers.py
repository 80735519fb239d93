"""The workers, and what they hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from django.db.models import Count, QuerySet

from ...core.options import RecoveryOptions
from ...db.expressions import SecondsUntil
from ...models import Task, Worker
from ...models.fields import texts_in

#: Workers that are told of at most.
MAX_WORKERS = 200


@dataclass(frozen=True, slots=True)
class HeldTasks:
    """What workers hold: how many in each state, in each queue, by each worker and kind: functions or coroutines."""

    states: Counter[str]
    queues: Counter[str]
    states_of_queues: Counter[tuple[str, str]]
    workers: Counter[tuple[str, bool]]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker: what it holds of how many slots of each kind, which queues are its, the seconds since its last beat."""

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
    is_alive: bool
    is_stopping: bool

    @property
    def held(self) -> int:
        """The tasks that it holds."""
        return self.threads_taken + self.async_slots_taken

    @property
    def load(self) -> float | None:
        """The share that is taken of the slots of which it has least left; None where they are not known."""
        kinds = ((self.threads_taken, self.threads), (self.async_slots_taken, self.async_slots))
        return max((min(1.0, taken / slots) for taken, slots in kinds if slots), default=None)

    @property
    def shown_load(self) -> str:
        """What is taken of each kind, the coroutines if there are any."""
        threads = f"{self.threads_taken}/{'?' if self.threads is None else self.threads}"
        if not self.async_slots_taken:
            return threads
        return f"{threads} + {self.async_slots_taken}/{'?' if self.async_slots is None else self.async_slots} async"

    def serves(self, queue: str) -> bool:
        """Whether it takes tasks of this queue."""
        return queue not in self.excluded_queues and (not self.queues or queue in self.queues)

    def as_json(self) -> dict[str, Any]:
        """Return it as ``horsies_status --json`` prints it. Times are seconds."""
        return asdict(self) | {"held": self.held, "load": self.load}


def count_held(database: str) -> HeldTasks:
    """Count what is held, by the index of held rows: there are no more than the workers have slots."""
    found = HeldTasks(Counter(), Counter(), Counter(), Counter())
    rows = Task.objects.using(database).active().order_by()
    columns = ("status", "queue_name", "claimed_by_worker_id", "is_async")
    for status, queue, worker, is_async, count in rows.values_list(*columns).annotate(Count("pk")):
        found.states[status] += count
        found.queues[queue] += count
        found.states_of_queues[queue, status] += count
        found.workers[worker or "", is_async] += count
    return found


def worker_statuses(database: str, recovery: RecoveryOptions, holding: Counter[tuple[str, bool]]) -> list[WorkerStatus]:
    """Return the workers, those first that beat last."""
    workers: QuerySet[Any] = Worker.objects.using(database).annotate(beat_in=SecondsUntil("last_beat_at"))
    return [
        WorkerStatus(
            worker.pk,
            worker.name,
            worker.hostname,
            worker.pid,
            worker.threads,
            holding[worker.pk, False],
            worker.async_slots,
            holding[worker.pk, True],
            tuple(texts_in(worker.queues)),
            tuple(texts_in(worker.excluded_queues)),
            max(0.0, -worker.beat_in),
            -worker.beat_in < recovery.silent_after,
            worker.stop_requested_at is not None,
        )
        for worker in workers.order_by("-last_beat_at", "pk")[:MAX_WORKERS]
    ]
