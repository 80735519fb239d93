"""A snapshot of the queue, as ``horsies_status`` and the top of the overview show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet

from ...core.backends import all_backends, backends_on
from ...core.compat import DEFAULT_TASK_QUEUE_NAME
from ...core.option_parsers import LONGEST_DURATION
from ...core.options import Options
from ...db.expressions import SecondOf, SecondsUntil
from ...db.now import Now
from ...db.statements import Statement, count_query, decode_rows, run_queries, scalar
from ...models import Lease, Rollup, Schedule, Task
from ...models.depths import Depth, Depths, depths
from ...models.lease import NEVER, REAPER_PREFIX
from ...models.rollup import RollupSpan
from ...models.schedule import DisabledBy
from ..queue_status import QueueStatus, queue_rows, status_from_row
from . import counts, history, latency, workflows
from .counts import OVERLAPPING, Count
from .history import Throughput
from .latency import LatencyTrend, LatencyWarning, latency_warning
from .workers import WorkerStatus, count_held, worker_statuses

#: Maximum number of queues with a row, and of queues that have neither a row nor an entry in the settings.
MAX_QUEUES: Final = 1_000
MAX_OTHER_QUEUES: Final = 200

#: The limits of a queue that are printed.
_LIMITS: Final = ("max_concurrency", "rate_limit", "priority", "weight", "tokens")

#: The number of intervals after which the reaper's last pass counts as late, and the seconds after which a due run of a
#: schedule does.
LATE_INTERVALS: Final = 4
LATE_AFTER: Final = 30

#: Maximum schedules with an invalid timing that are counted.
MAX_BROKEN: Final = 1_000

#: Seconds by which a time that the database has given may be later than its clock.
TOLERANCE: Final = 60.0


@dataclass(frozen=True, slots=True)
class QueueMetrics:
    """Metrics of one queue: its depth, held tasks, throughput, limits, and counts by state.

    ``trend`` is None unless the snapshot has trends.
    """

    name: str
    depth: Depth
    throughput: Throughput
    status: QueueStatus
    counts: Mapping[str, Count]
    trend: LatencyTrend | None = None

    @property
    def due(self) -> int:
        """The due tasks: as ``counts`` has them, or as ``depth`` does, whose bound is for this queue alone."""
        return max(self.counts["due"].number, self.depth.due)

    @property
    def latency_warning(self) -> LatencyWarning | None:
        """The warning if the oldest due task has waited longer than the settings allow."""
        return latency_warning(self.name, self.depth.waits, self.status.latency_warning, self.trend)

    def as_json(self) -> dict[str, Any]:
        """Return the dict that ``horsies_status --json`` prints. Times are in seconds."""
        throughput = self.throughput
        return {
            "name": self.name,
            "paused": self.status.is_paused,
            **self.depth.as_json(),
            "latency_warning": warning.as_json() if (warning := self.latency_warning) else None,
            "held": self.status.held,
            "counts": {state: count.as_json() for state, count in self.counts.items() if state not in OVERLAPPING},
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
    ``broken_schedules`` are disabled because of an invalid timing. ``waits`` are the awaiting tasks by what they wait
    for.
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
    are_schedules_late: bool
    broken_schedules: int
    waits: Mapping[str, Count]

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
            "waiting_for": {name: count.as_json() for name, count in self.waits.items()},
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


def collect(options: Options, *, with_trends: bool = False, also: str | None = None) -> MetricsSnapshot:
    """Collect a snapshot in eight statements, or ten if tasks wait in very many queues and very many are blocked.

    ``with_trends`` also reads the latency of each queue in each minute of the last hour. ``also`` is a queue to include
    even if nothing is known of it.
    """
    database = options.database
    answers = run_queries(database, _queries(database) | (latency.queries(database) if with_trends else {}))
    second = float(answers["second"])
    held = count_held(database)
    rows = {row["name"]: row for row in queue_rows(database).order_by("name")[:MAX_QUEUES]}
    wanted = [] if also is None else [also]
    due = depths(Task.objects.using(database), also=[*wanted, *sorted(_configured_queues()), *rows])
    throughput = history.throughput_by_queue(answers)
    named = {*rows, *_configured_queues(), *wanted}
    waiting = [name for name, *_ in decode_rows(answers["deferred"])]
    others = dict.fromkeys([*due, *(name for name, _ in held.queues), *sorted(filter(None, [*waiting, *throughput]))])
    unnamed = [name for name in others if name not in named]
    names = sorted({*named, *islice(unnamed, MAX_OTHER_QUEUES)})
    by_state = counts.counts_of_queues(answers, held, names)
    trends = defaultdict(lambda: LatencyTrend(second), latency.trends(answers, second)) if with_trends else None
    queues = [
        QueueMetrics(
            name,
            due.of(name),
            throughput.get(name, Throughput()),
            status_from_row(name, rows.get(name), held.of_queue(name), database),
            by_state[name],
            None if trends is None else trends[name],
        )
        for name in names
    ]
    due_in = [answers[name] for name in answers if name.startswith("schedule of ") and answers[name] is not None]
    return MetricsSnapshot(
        by_state[None],
        tuple(queues),
        due.is_more or len(unnamed) > MAX_OTHER_QUEUES,
        due,
        tuple(worker_statuses(database, options.recovery, held)),
        workflows.counts(answers),
        tuple(workflows.newest_ids(answers)),
        tuple(workflows.failed_ids(answers)),
        None if answers["reaper"] is None else max(0.0, -float(answers["reaper"])),
        options.recovery.check_interval,
        _seconds_behind(answers),
        second,
        history.lag_of(answers["rollup lag"]),
        min(due_in, default=0.0) < -LATE_AFTER,
        decode_rows(answers["broken schedules"])[0],
        counts.waits(answers["waits by name"]),
    )


def _queries(database: str) -> dict[str, Statement]:
    schedules = Schedule.objects.using(database)
    due = schedules.filter(enabled=True, next_run_at__isnull=False).order_by("next_run_at")
    broken = schedules.filter(enabled=False, disabled_by=DisabledBy.TIMING)
    tasks = Task.objects.using(database)
    minutes = Rollup.objects.using(database).filter(span=RollupSpan.MINUTE).order_by("-start")
    first_values = {
        "reaper": _reaper_passes(database),
        "newest task": tasks.order_by("-pk").values_list(SecondsUntil("sent_at")),
        "newest roll-up": minutes.values_list(SecondsUntil("start")),
        **{
            f"schedule of {alias}": due.filter(backend=alias).values_list(SecondsUntil("next_run_at"))
            for alias in backends_on(database)
        },
    }
    return {
        **counts.queries(database),
        **history.queries(database),
        **workflows.queries(database),
        **{name: Statement.part(rows[:1]) for name, rows in first_values.items()},
        "second": scalar(SecondOf(Now()), tasks),
        "rollup lag": history.lag_query(database),
        "broken schedules": count_query(broken, MAX_BROKEN),
        "waits by name": counts.waits_query(database),
    }


def _seconds_behind(answers: Mapping[str, Any]) -> float:
    """Return how far the database's clock is behind the newest times in rows; 0 if it is not."""
    ahead = [answers[name] or 0.0 for name in ("newest task", "newest roll-up")]
    return max((seconds for seconds in ahead if TOLERANCE < seconds <= LONGEST_DURATION), default=0.0)


def reaper_ago(database: str) -> float | None:
    """Return the seconds since the last pass of a reaper; None if none ever ran. A pass with --once does not count."""
    row = _reaper_passes(database).first()
    return None if row is None else max(0.0, -float(row[0]))


def _reaper_passes(database: str) -> QuerySet[Any, Any]:
    """Return the seconds until each reaper's last pass, which are negative. A pass with --once takes no lease."""
    held = Lease.objects.using(database).filter(name__startswith=REAPER_PREFIX, renewed_at__gt=NEVER)
    return held.order_by("-renewed_at").values_list(SecondsUntil("renewed_at"))


def _configured_queues() -> set[str]:
    """Return the names of the queues in the settings."""
    return {name for backend in all_backends() for name in backend.queues or {DEFAULT_TASK_QUEUE_NAME}}
