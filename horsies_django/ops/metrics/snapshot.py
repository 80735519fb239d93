"""A snapshot of the queue, as ``horsies_status`` and the top of the overview show it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from uuid import UUID

from django.db import connections
from django.db.models import F, QuerySet

from ...core.compat import DEFAULT_TASK_QUEUE_NAME, task_backends
from ...core.options import Options
from ...db.expressions import SecondOf, SecondsUntil
from ...db.now import Now
from ...db.statements import Statement, decode_rows, rows_query, run_queries, scalar
from ...enqueue.backend import HorsiesBackend
from ...models import Lease, Queue, Task
from ...models.depths import Depth, Depths, depths
from ...models.lease import NEVER
from ...reaper.loop import LEASE_PREFIX
from ..queue_status import QueueStatus, status_from_row
from . import clock, counts, history, latency, rollup_lag, workflows
from .counts import Count
from .history import Throughput, throughput_by_queue
from .latency import LatencyTrend, LatencyWarning, latency_warning
from .workers import HeldTasks, WorkerStatus, count_held, worker_statuses

#: Maximum number of queues with a row, and of queues that have neither a row nor an entry in the settings.
MAX_QUEUES: Final = 1_000
MAX_OTHER_QUEUES: Final = 200

#: The columns of a queue that are read, and those that are printed.
_ROW: Final = ("paused", "max_concurrency", "rate_limit", "priority", "weight", "tokens", "until")
_LIMITS: Final = ("max_concurrency", "rate_limit", "priority", "weight", "tokens")

#: The number of intervals after which the reaper's last pass counts as late.
LATE_INTERVALS: Final = 4


@dataclass(frozen=True, slots=True)
class QueueMetrics:
    """Metrics of one queue: its depth, held tasks, throughput, limits, and counts by state, each task in one state.

    ``due`` counts its due tasks up to a larger bound than ``depth``, but one for all queues. ``trend`` is None unless
    the snapshot has trends.
    """

    name: str
    is_paused: bool
    depth: Depth
    held: int
    throughput: Throughput
    status: QueueStatus
    counts: Mapping[str, Count]
    due: Count
    trend: LatencyTrend | None = None

    @property
    def latency_warning(self) -> LatencyWarning | None:
        """The warning if the oldest due task has waited longer than the settings allow."""
        return latency_warning(self.name, self.depth.waits, self.status.latency_warning, self.trend)

    def as_json(self) -> dict[str, Any]:
        """Return the dict that ``horsies_status --json`` prints. Times are in seconds."""
        throughput = self.throughput
        return {
            "name": self.name,
            "paused": self.is_paused,
            **self.depth.as_json(),
            "latency_warning": warning.as_json() if (warning := self.latency_warning) else None,
            "held": self.held,
            "counts": {state: count.as_json() for state, count in self.counts.items()},
            "limits": {name: value for name, value in self.status.as_json().items() if name in _LIMITS},
            "last_hour": {outcome: throughput.counts[outcome] for outcome in ("completed", "retried", "failed")},
            "wait_p50": throughput.wait_p50,
            "wait_p95": throughput.wait_p95,
            "run_p50": throughput.run_p50,
            "run_p95": throughput.run_p95,
        }


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Metrics of the whole database. ``reaper_ago`` is in seconds; None if the reaper never ran.

    ``clock_behind`` is the number of seconds by which the database's clock was set back; 0 if it was not.
    """

    counts: Mapping[str, Count]
    queues: tuple[QueueMetrics, ...]
    is_more_queues: bool  # further queues are not listed
    depths: Depths  # of each queue with due or blocked tasks, and how long the oldest of all have waited
    workers: tuple[WorkerStatus, ...]
    workflows: Mapping[str, Count]
    newest_workflows: tuple[UUID, ...]
    failed_workflows: tuple[UUID, ...]
    reaper_ago: float | None
    reaper_interval: float
    clock_behind: float
    second: float  # seconds since 1970 by the database's clock
    rollup_lag: float  # seconds since the end of the first attempt that is not counted; 0 if all are

    @property
    def alive(self) -> tuple[WorkerStatus, ...]:
        """The workers that are not offline. Some of them may have stopped responding, or stand still."""
        return tuple(worker for worker in self.workers if worker.is_alive)

    @property
    def not_responding(self) -> tuple[WorkerStatus, ...]:
        """The workers that have missed heartbeats and are not offline yet."""
        return tuple(worker for worker in self.alive if not worker.is_responding)

    @property
    def stalled(self) -> tuple[WorkerStatus, ...]:
        """The workers whose heartbeats arrive, but that stand still."""
        return tuple(worker for worker in self.alive if worker.is_responding and worker.stalled_for is not None)

    @property
    def unserved(self) -> tuple[str, ...]:
        """The queues with due tasks that no worker serves, apart from those that stop, are quiet or stand still."""
        serving = [worker for worker in self.workers if worker.may_claim]
        due = (queue.name for queue in self.queues if queue.depth.due)
        return tuple(name for name in due if not any(worker.serves(name) for worker in serving))

    @property
    def latency_warnings(self) -> tuple[LatencyWarning, ...]:
        """The warnings of all queues whose latency exceeds their threshold."""
        return tuple(warning for queue in self.queues if (warning := queue.latency_warning))

    @property
    def is_reaper_late(self) -> bool:
        """Whether the reaper's last pass is so old that no reaper may be running."""
        return self.reaper_ago is None or self.reaper_ago > LATE_INTERVALS * self.reaper_interval

    def as_json(self) -> dict[str, Any]:
        """Return the dict that ``horsies_status --json`` prints. Times are in seconds."""
        return {
            "counts": {name: count.as_json() for name, count in self.counts.items()},
            "oldest_waits": self.depths.waits,
            "oldest_waits_is_at_least": not self.depths.is_searched,
            "oldest_blocked_waits": self.depths.blocked_waits,
            "oldest_blocked_waits_is_at_least": not self.depths.is_searched_blocked,
            "queues": [queue.as_json() for queue in self.queues],
            "queues_are_more": self.is_more_queues,
            "workers": [worker.as_json() for worker in self.workers],
            "workflows": {name: count.as_json() for name, count in self.workflows.items()},
            "clock_behind": self.clock_behind,
            "reaper": {
                "last_pass_ago": self.reaper_ago,
                "interval": self.reaper_interval,
                "late": self.is_reaper_late,
                "rollup_lag": self.rollup_lag,
            },
        }


def collect(options: Options, *, with_trends: bool = False) -> MetricsSnapshot:
    """Collect a snapshot in seven statements, or nine if tasks wait in very many queues and very many are blocked.

    ``with_trends`` also reads the latency of each queue in each minute of the last hour.
    """
    database = options.database
    answers = run_queries(database, _queries(database) | (latency.queries(database) if with_trends else {}))
    second = float(answers["second"])
    holding = count_held(database)
    rows = {name: dict(zip(_ROW, row, strict=True)) for name, *row in decode_rows(answers["queues"])}
    due = depths(Task.objects.using(database), also=[*sorted(_configured_queues()), *rows])
    reaper_in = answers["reaper"]
    throughput = throughput_by_queue(answers)
    named = {*rows, *_configured_queues()}
    others = dict.fromkeys([*due, *holding.queues, *sorted(name for name in throughput if name)])
    unnamed = [name for name in others if name not in named]
    names = sorted({*named, *islice(unnamed, MAX_OTHER_QUEUES)})
    by_state = counts.counts_by_queue(answers, names, holding, due)
    due_tasks = counts.due_by_queue(answers, names, due)
    trends = defaultdict(lambda: LatencyTrend(second), latency.trends(answers, second)) if with_trends else None
    return MetricsSnapshot(
        counts.counts_by_state(answers, holding.states),
        tuple(_queue_metrics(names, rows, due, holding, throughput, by_state, due_tasks, trends, database)),
        due.is_more or len(unnamed) > MAX_OTHER_QUEUES,
        due,
        tuple(worker_statuses(database, options.recovery, holding.workers)),
        workflows.counts(answers),
        tuple(workflows.newest_ids(answers)),
        tuple(workflows.failed_ids(answers)),
        None if reaper_in is None else max(0.0, -float(reaper_in)),
        options.recovery.check_interval,
        clock.seconds_behind(answers),
        second,
        rollup_lag.lag_of(answers["rollup lag"]),
    )


def _queries(database: str) -> dict[str, Statement]:
    queues = Queue.objects.using(database).order_by("name")[:MAX_QUEUES]
    columns = {name: F(name) for name in _ROW[:-1]} | {"until": SecondsUntil("refilled_at")}
    return {
        **counts.queries(database),
        **history.queries(database),
        **workflows.queries(database),
        **clock.queries(database),
        "queues": rows_query(queues, {"name": F("name"), **columns}, database),
        "second": scalar(SecondOf(Now()), Task.objects.using(database)),
        "reaper": Statement.part(_reaper_passes(database)[:1]),
        "rollup lag": rollup_lag.query(database),
    }


def database_second(database: str | None) -> float:
    """Return the seconds since 1970 by the database's clock."""
    tasks = Task.objects.using(database)
    with connections[tasks.db].cursor() as cursor:
        statement = scalar(SecondOf(Now()), tasks)
        cursor.execute(statement.sql, statement.params)
        return float(cursor.fetchone()[0])


def reaper_ago(database: str) -> float | None:
    """Return the seconds since the last pass of a reaper; None if none ever ran. A pass with --once does not count."""
    row = _reaper_passes(database).first()
    return None if row is None else max(0.0, -float(row[0]))


def _reaper_passes(database: str) -> QuerySet[Any, Any]:
    """Return the seconds until each reaper's last pass, which are negative. A pass with --once takes no lease."""
    held = Lease.objects.using(database).filter(name__startswith=LEASE_PREFIX, renewed_at__gt=NEVER)
    return held.order_by("-renewed_at").values_list(SecondsUntil("renewed_at"))


def _queue_metrics(
    names: Iterable[str],
    rows: Mapping[str, dict[str, Any]],
    due: Depths,
    holding: HeldTasks,
    throughput: Mapping[str, Throughput],
    by_state: Mapping[str, Mapping[str, Count]],
    due_tasks: Mapping[str, Count],
    trends: Mapping[str, LatencyTrend] | None,
    database: str,
) -> Iterable[QueueMetrics]:
    for name in names:
        yield QueueMetrics(
            name,
            bool(rows[name]["paused"]) if name in rows else False,
            due.of(name),
            holding.queues[name],
            throughput.get(name, Throughput(Counter())),
            status_from_row(name, rows.get(name), holding.queues[name], database),
            by_state[name],
            due_tasks[name],
            None if trends is None else trends[name],
        )


def _configured_queues() -> set[str]:
    """Return the names of the queues in the settings."""
    ours = (task_backends[alias] for alias in task_backends if isinstance(task_backends[alias], HorsiesBackend))
    return {name for backend in ours for name in backend.queues or {DEFAULT_TASK_QUEUE_NAME}}
