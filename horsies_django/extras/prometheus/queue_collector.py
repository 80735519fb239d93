"""The metrics of the whole queue, from its tables: any process that can read them gives the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ...core.histogram import BOUNDS, counts_up_to
from ...core.options import Options
from ...ops.metrics import Durations, MetricsSnapshot, Totals, Upkeep, collect, totals, upkeep
from ...ops.metrics.snapshot import QueueMetrics
from ...ops.metrics.totals import Pair
from ...ops.metrics.workers import WorkerStatus

#: The label of all that is not listed by name.
OTHER: Final = "other"

#: Maximum series of one metric.
MAX_SERIES: Final = 500

_QUEUE, _PAIR, _WORKER = ["queue"], ["queue", "task"], ["worker"]


class QueueCollector(Collector):
    """Collects the metrics of a queue's database in a fixed number of statements."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def collect(self) -> Iterator[Metric]:
        """Yield each metric. Raises django.db.Error."""
        database = self._options.database
        snapshot, counted, kept = collect(self._options), totals(database), upkeep(database)
        yield from _task_metrics(counted)
        yield from _queue_metrics(snapshot, counted)
        yield from _worker_metrics(snapshot)
        yield from _workflow_metrics(snapshot)
        yield from _upkeep_metrics(snapshot, kept)


def _label(name: str) -> str:
    return name or OTHER


def _task_metrics(counted: Totals) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        "horsies_tasks", "Tasks that ended after an attempt, since the first roll-up.", labels=[*_PAIR, "outcome"]
    )
    by_labels: Counter[tuple[str, ...]] = Counter()
    for (queue, task, outcome), count in counted.ended.items():
        by_labels[_label(queue), _label(task), outcome] += count
    _add(ended, by_labels)
    yield ended
    retries = CounterMetricFamily(
        "horsies_task_retries", "Attempts after which the task was retried, since the first roll-up.", labels=_PAIR
    )
    by_labels = Counter()
    for (queue, task), count in counted.retries.items():
        by_labels[_label(queue), _label(task)] += count
    _add(retries, by_labels)
    yield retries
    yield _histogram("horsies_task_wait_seconds", "Time from due to start of each attempt.", counted.waits)
    yield _histogram("horsies_task_duration_seconds", "Duration of each attempt.", counted.runs)


def _histogram(name: str, text: str, durations: Mapping[Pair, Durations]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=_PAIR)
    merged: dict[tuple[str, str], Durations] = {}
    for (queue, task), one in durations.items():
        into = merged.setdefault((_label(queue), _label(task)), Durations())
        into.histogram.update(one.histogram)
        into.seconds += one.seconds
    bounds = [f"{bound:.10g}" for bound in BOUNDS]
    for labels, one in sorted(merged.items()):
        buckets = [*zip(bounds, counts_up_to(one.histogram), strict=True), ("+Inf", one.histogram.total())]
        family.add_metric(labels, buckets, one.seconds)
    return family


#: The gauges of a queue: name, help, value (None: unknown), and how the values of queues without a name are combined.
_Value = Callable[[QueueMetrics], float | None]
_Combine = Callable[[Iterable[float]], float]
_QUEUE_GAUGES: Final[Sequence[tuple[str, str, _Value, _Combine]]] = (
    (
        "ready",
        "Tasks that are due and wait for a worker; a lower bound if there are very many.",
        lambda q: q.due.number,
        sum,
    ),
    (
        "oldest_ready_seconds",
        "How long the oldest ready task has waited; 0 if there is none.",
        lambda q: _or_zero(q.depth.waits, is_unknown=q.depth.is_more),
        max,
    ),
    (
        "blocked",
        "Tasks that wait for their limit, or for a paused workflow; a lower bound if there are very many.",
        lambda q: q.depth.blocked,
        sum,
    ),
    (
        "oldest_blocked_seconds",
        "How long the oldest task has waited for its limit; 0 if there is none.",
        lambda q: _or_zero(q.depth.blocked_waits, is_unknown=q.depth.is_more_blocked),
        max,
    ),
    (
        "latency_warning_seconds",
        "The latency_warning of the settings; missing if there is none.",
        lambda q: q.status.latency_warning.total_seconds() if q.status.latency_warning else None,
        max,
    ),
    ("running", "Tasks that a worker holds, claimed or running.", lambda q: q.held, sum),
    ("scheduled", "Tasks that are due later.", lambda q: q.counts["scheduled"].number, sum),
    ("retrying", "Tasks that wait for a retry.", lambda q: q.counts["retrying"].number, sum),
    ("paused", "Whether the queue is paused; of several queues, how many are.", lambda q: q.is_paused, sum),
)


def _or_zero(waits: float | None, *, is_unknown: bool) -> float | None:
    """Return the age of the oldest task; 0 if there is no task, None if that is unknown."""
    return 0.0 if waits is None and not is_unknown else waits


def _queue_metrics(snapshot: MetricsSnapshot, counted: Totals) -> Iterator[Metric]:
    """Yield the gauges of queues, those with the most attempts of all time by name."""
    order = sorted(snapshot.queues, key=lambda queue: (-counted.queues.get(queue.name, 0), queue.name))
    named = {queue.name for queue in (order if len(order) < MAX_SERIES else order[: MAX_SERIES - 1])}
    depths = snapshot.depths
    unlisted = {
        "oldest_ready_seconds": depths.waits if depths.is_more else None,
        "oldest_blocked_seconds": depths.blocked_waits if depths.is_more_blocked else None,
    }
    for name, text, value_of, combine in _QUEUE_GAUGES:
        family = GaugeMetricFamily(f"horsies_queue_{name}", text, labels=_QUEUE)
        values: dict[str, list[float]] = {}
        for queue in order:
            if (value := value_of(queue)) is not None:
                values.setdefault(_label(queue.name) if queue.name in named else OTHER, []).append(float(value))
        if (oldest := unlisted.get(name)) is not None:
            values.setdefault(OTHER, []).append(oldest)
        for label in sorted(values):
            family.add_metric([label], combine(values[label]))
        yield family
    yield _gauge("horsies_unserved_queues", "Queues with ready tasks that no worker serves.", len(snapshot.unserved))


def _worker_metrics(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    alive = snapshot.alive
    serving = sum(not worker.is_stopping and worker.stalled_for is None for worker in alive)
    yield _gauge("horsies_workers", "Workers with a recent heartbeat that neither stop nor stand still.", serving)
    stalled = len(snapshot.stalled)
    yield _gauge("horsies_stalled_workers", "Workers that stand still, as their supervisors see.", stalled)
    values: Mapping[str, tuple[str, Callable[[WorkerStatus], float | None]]] = {
        "heartbeat_age_seconds": ("Time since the worker's last heartbeat.", lambda worker: worker.beat_ago),
        "threads": ("Slots for sync tasks.", lambda worker: worker.threads),
        "threads_taken": ("Slots for sync tasks that are taken.", lambda worker: worker.threads_taken),
        "async_slots": ("Slots for coroutine tasks.", lambda worker: worker.async_slots),
        "async_slots_taken": ("Slots for coroutine tasks that are taken.", lambda worker: worker.async_slots_taken),
    }
    for name, (text, value_of) in values.items():
        family = GaugeMetricFamily(f"horsies_worker_{name}", text, labels=_WORKER)
        for worker in alive:
            if (value := value_of(worker)) is not None:
                family.add_metric([worker.id], float(value))
        yield family


def _workflow_metrics(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    for state, count in snapshot.workflows.items():
        yield _gauge(f"horsies_workflows_{state}", f"Workflows that are {state}, up to 10,000.", count.number)


def _upkeep_metrics(snapshot: MetricsSnapshot, kept: Upkeep) -> Iterator[Metric]:
    values = {
        "horsies_reaper_last_pass_age_seconds": ("Time since the reaper's last pass.", snapshot.reaper_ago),
        "horsies_rollup_lag_seconds": (
            "Time since the end of the first attempt that is not counted; 0 if all are.",
            snapshot.rollup_lag,
        ),
        "horsies_scheduler_last_pass_age_seconds": (
            "Time since the scheduler's last pass, which is recorded every 15 seconds.",
            kept.scheduler_ago,
        ),
        "horsies_database_live_tuples": ("Rows of the queue's tables, as PostgreSQL estimates them.", kept.live_rows),
        "horsies_database_dead_tuples": ("Dead rows that vacuum has yet to remove.", kept.dead_rows),
        "horsies_database_oldest_transaction_seconds": (
            "Age of the oldest open transaction of the database.",
            kept.oldest_transaction,
        ),
    }
    for name, (text, value) in values.items():
        if value is not None:
            yield _gauge(name, text, value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _add(family: CounterMetricFamily, values: Mapping[tuple[str, ...], int]) -> None:
    for labels, value in sorted(values.items()):
        family.add_metric(labels, value)
