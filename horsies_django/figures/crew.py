"""The workers, and what they hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from django.db.models import Count

from ..conf import RecoveryOptions
from ..expressions import SecondsUntil
from ..models import Task, Worker

#: Workers that are told of at most.
WORKERS = 200


@dataclass(frozen=True, slots=True)
class Held:
    """What workers hold: how many in each state, in each queue, by each worker."""

    states: Counter[str]
    queues: Counter[str]
    workers: Counter[str]


@dataclass(frozen=True, slots=True)
class Member:
    """A worker: what it holds of how many slots, and the seconds since its last beat."""

    id: str
    name: str
    hostname: str
    pid: int
    slots: int | None
    held: int
    beat_ago: float
    is_alive: bool
    is_stopping: bool

    @property
    def load(self) -> float | None:
        """The share of its slots that are taken."""
        return min(1.0, self.held / self.slots) if self.slots else None


def held(database: str) -> Held:
    """Count what is held, by the index of held rows: there are no more than the workers have slots."""
    found = Held(Counter(), Counter(), Counter())
    rows = Task.objects.using(database).active().order_by()
    for status, queue, worker, count in rows.values_list("status", "queue_name", "claimed_by_worker_id").annotate(
        Count("pk")
    ):
        found.states[status] += count
        found.queues[queue] += count
        found.workers[worker or ""] += count
    return found


def silent_after(recovery: RecoveryOptions) -> float:
    """The seconds without a beat after which a worker is taken for dead."""
    return min(recovery.claimed_stale_threshold_ms, recovery.running_stale_threshold_ms) / 1_000


def crew(database: str, recovery: RecoveryOptions, holding: Counter[str]) -> list[Member]:
    """Return the workers, those first that beat last."""
    rows = Worker.objects.using(database).order_by("-last_beat_at", "pk")
    silent = silent_after(recovery)
    columns = ("pk", "name", "hostname", "pid", "threads", "async_slots", SecondsUntil("last_beat_at"))
    members = []
    for key, name, host, pid, threads, slots, beat_in, stop in rows.values_list(*columns, "stop_requested_at")[
        :WORKERS
    ]:
        known = None if threads is None and slots is None else (threads or 0) + (slots or 0)
        ago = max(0.0, -beat_in)
        members.append(Member(key, name, host, pid, known, holding[key], ago, ago < silent, stop is not None))
    return members
