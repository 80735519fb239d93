"""The state of the queue now: what ``horsies_status`` prints and the overview begins with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Now

from ...core.compat import DEFAULT_TASK_QUEUE_NAME, task_backends
from ...core.options import Options
from ...db.expressions import MinuteOf, SecondsUntil
from ...db.multi_query import decode_rows, rows_query, run_queries, scalar
from ...db.statements import Statement
from ...enqueue.backend import HorsiesBackend
from ...models import Queue, Task, Turn
from ...models.depths import Depth, Depths, depths
from ...models.lease import NEVER
from ...reaper.loop import TURN
from ..queue_status import QueueStatus, status_from_row
from . import counts, workflows
from .counts import Count
from .history import Throughput, TimeBucket, last_hour, throughput_by_queue
from .workers import HeldTasks, WorkerStatus, count_held, worker_statuses

#: Due tasks that no worker has let into the index of claims yet: so many are assigned to their queues.
MAX_JUST_DUE: Final = 1_000

#: Queues with a row that are told of at most, and of those that neither have one nor are named by the settings.
MAX_QUEUES: Final = 1_000
MAX_OTHER_QUEUES: Final = 200

#: What is read of a queue's row; of what holds for it that is printed. JSON has no durations.
_ROW: Final = ("paused", "max_concurrency", "rate_limit", "priority", "weight", "tokens", "until")
_LIMITS: Final = ("max_concurrency", "rate_limit", "priority", "weight", "tokens")

#: The reaper's last pass is late after so many of its intervals.
LATE_INTERVALS: Final = 4


@dataclass(frozen=True, slots=True)
class QueueMetrics:
    """One queue: whether it is paused, what is due and held there, for how long the oldest waits, how it does.

    ``counts`` has the states that a task of it may be in, each task in one.
    """

    name: str
    is_paused: bool
    depth: Depth
    held: int
    throughput: Throughput
    status: QueueStatus
    counts: Mapping[str, Count]

    def as_json(self) -> dict[str, Any]:
        """Return it as ``horsies_status --json`` prints it. Times are seconds."""
        pace = self.throughput
        return {
            "name": self.name,
            "paused": self.is_paused,
            "due": self.depth.due,
            "due_is_at_least": self.depth.is_more,
            "oldest_waits": self.depth.waits,
            "held": self.held,
            "counts": {state: count.as_json() for state, count in self.counts.items()},
            "limits": {name: value for name, value in self.status.as_json().items() if name in _LIMITS},
            "last_hour": {fate: pace.counts[fate] for fate in ("completed", "retried", "failed")},
            "wait_p50": pace.wait_p50,
            "wait_p95": pace.wait_p95,
            "run_p50": pace.run_p50,
            "run_p95": pace.run_p95,
        }


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How things stand. ``reaper_ago`` is None if there was never a pass."""

    counts: Mapping[str, Count]
    queues: tuple[QueueMetrics, ...]
    is_more_queues: bool  # there are others too
    unlisted_waits: float | None  # then: the oldest of all that were searched
    is_oldest_found: bool  # whether all were
    workers: tuple[WorkerStatus, ...]
    workflows: Mapping[str, Count]
    newest_workflows: tuple[UUID, ...]
    reaper_ago: float | None
    reaper_interval: float
    minutes: tuple[TimeBucket, ...]
    minute: int  # of the database's clock, since 1970

    @property
    def oldest_waits(self) -> float | None:
        """The seconds for which the oldest due task of all has waited; at least, unless ``is_oldest_found``."""
        waits = (self.unlisted_waits, *(queue.depth.waits for queue in self.queues))
        return max((seconds for seconds in waits if seconds is not None), default=None)

    @property
    def alive(self) -> tuple[WorkerStatus, ...]:
        """The workers that beat."""
        return tuple(worker for worker in self.workers if worker.is_alive)

    @property
    def unserved(self) -> tuple[str, ...]:
        """The queues in which something is due and that no worker serves which is there to stay."""
        serving = [worker for worker in self.alive if not worker.is_stopping]
        due = (queue.name for queue in self.queues if queue.depth.due)
        return tuple(name for name in due if not any(worker.serves(name) for worker in serving))

    @property
    def is_reaper_late(self) -> bool:
        """Whether what the reaper counts stands still."""
        return self.reaper_ago is None or self.reaper_ago > LATE_INTERVALS * self.reaper_interval

    def as_json(self) -> dict[str, Any]:
        """Return all of it as ``horsies_status --json`` prints it. Times are seconds."""
        return {
            "counts": {name: count.as_json() for name, count in self.counts.items()},
            "oldest_waits": self.oldest_waits,
            "oldest_waits_is_at_least": not self.is_oldest_found,
            "queues": [queue.as_json() for queue in self.queues],
            "queues_are_more": self.is_more_queues,
            "workers": [worker.as_json() for worker in self.workers],
            "workflows": {name: count.as_json() for name, count in self.workflows.items()},
            "reaper": {"last_pass_ago": self.reaper_ago, "interval": self.reaper_interval, "late": self.is_reaper_late},
        }


def collect(options: Options) -> Snapshot:
    """Read how things stand, in nine statements; one more where tasks wait in very many queues."""
    database = options.database
    answers = run_queries(database, _queries(database))
    holding = count_held(database)
    minute = int(answers["minute"])
    minutes, hour = last_hour(database, minute)
    rows = {name: dict(zip(_ROW, row, strict=True)) for name, *row in decode_rows(answers["queues"])}
    due = depths(Task.objects.using(database), also=[*sorted(_configured_queues()), *rows])
    for name, waits in decode_rows(answers["latecomers"]):
        due[name] = due.of(name) + Depth(1, False, max(0.0, -waits))
    reaper_in = answers["reaper"]
    pace = throughput_by_queue(database, hour)
    named = {*rows, *_configured_queues()}
    others = dict.fromkeys([*due, *holding.queues, *sorted(name for name in pace if name)])
    unnamed = [name for name in others if name not in named]
    names = sorted({*named, *islice(unnamed, MAX_OTHER_QUEUES)})
    by_state = counts.counts_by_queue(answers, names, holding, due)
    return Snapshot(
        counts.counts_by_state(answers, holding.states),
        tuple(_queue_metrics(names, rows, due, holding, pace, by_state, database)),
        due.is_more or len(unnamed) > MAX_OTHER_QUEUES,
        due.waits,
        due.is_searched,
        tuple(worker_statuses(database, options.recovery, holding.workers)),
        workflows.counts(answers),
        tuple(workflows.newest_ids(answers)),
        None if reaper_in is None else max(0.0, -float(reaper_in)),
        options.recovery.check_interval_ms / 1_000,
        tuple(minutes),
        minute,
    )


def _queries(database: str) -> dict[str, Statement]:
    pending = Task.objects.using(database).deferred().filter(enqueued_at__lte=Now())
    latecomers = pending.order_by("enqueued_at")[:MAX_JUST_DUE]
    queues = Queue.objects.using(database).order_by("name")[:MAX_QUEUES]
    columns = {name: F(name) for name in _ROW[:-1]} | {"until": SecondsUntil("refilled_at")}
    taken = Turn.objects.using(database).filter(name__startswith=TURN, taken_at__gt=NEVER)  # --once takes no turn
    reaper = taken.order_by("-taken_at")
    return {
        **counts.queries(database),
        **workflows.queries(database),
        "latecomers": rows_query(latecomers, {"name": F("queue_name"), "waits": SecondsUntil("enqueued_at")}, database),
        "queues": rows_query(queues, {"name": F("name"), **columns}, database),
        "minute": scalar(MinuteOf(Now()), Task.objects.using(database)),
        "reaper": Statement.select(reaper.values_list(SecondsUntil("taken_at"))[:1]),
    }


def _queue_metrics(
    names: Iterable[str],
    rows: Mapping[str, dict[str, Any]],
    due: Depths,
    holding: HeldTasks,
    pace: Mapping[str, Throughput],
    by_state: Mapping[str, Mapping[str, Count]],
    database: str,
) -> Iterable[QueueMetrics]:
    for name in names:
        yield QueueMetrics(
            name,
            bool(rows[name]["paused"]) if name in rows else False,
            due.of(name),
            holding.queues[name],
            pace.get(name, Throughput(Counter())),
            status_from_row(name, rows.get(name), holding.queues[name], database),
            by_state[name],
        )


def _configured_queues() -> set[str]:
    """The queues of the settings."""
    ours = (task_backends[alias] for alias in task_backends if isinstance(task_backends[alias], HorsiesBackend))
    return {name for backend in ours for name in backend.queues or {DEFAULT_TASK_QUEUE_NAME}}
