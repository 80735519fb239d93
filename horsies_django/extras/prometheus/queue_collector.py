"""The metrics of the whole queue, from its tables: any process that can read them gives the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from django.apps import apps
from django.db import connections
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ...core.backends import backends_on
from ...core.histogram import BOUNDS, counts_up_to, merge
from ...core.options import Options
from ...db import postgres
from ...db.expressions import SecondsUntil
from ...db.statements import Statement, decode_rows, run_queries
from ...models import Lease, Rollup
from ...models.rollup import RollupSpan
from ...ops.metrics import MetricsSnapshot, collect
from ...ops.metrics.history import RETRIED, outcome_of
from ...ops.metrics.snapshot import QueueMetrics
from ...ops.metrics.workers import WorkerStatus
from ...schedules.scheduler import lease_name

#: The label of all that is not listed by name.
OTHER: Final = "other"

#: Maximum series of one metric.
MAX_SERIES: Final = 500

#: Maximum pairs of queue and task with a name: a counter has two series of each, a histogram one for each bucket.
MAX_PAIRS: Final = MAX_SERIES // 2 - 1
MAX_HISTOGRAMS: Final = 28

_QUEUE, _PAIR, _WORKER = ["queue"], ["queue", "task"], ["worker"]

_Labels = tuple[str, ...]
_OTHERS: Final[_Labels] = (OTHER, OTHER)

#: The histograms, in the order of their columns.
_HISTOGRAMS: Final = {
    "horsies_task_wait_seconds": "Time from due to start of each attempt.",
    "horsies_task_duration_seconds": "Duration of each attempt.",
}


class QueueCollector(Collector):
    """Collects the metrics of a queue's database in a fixed number of statements."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def collect(self) -> Iterator[Metric]:
        """Yield each metric. Raises django.db.Error."""
        reading = self._options.for_reading
        snapshot, totals = collect(reading), _read_totals(reading.database)
        upkeep = _read_upkeep(self._options.database)  # a replica has its own transactions, and counts no dead rows
        yield from _task_metrics(totals)
        yield from _queue_metrics(snapshot, totals)
        yield from _worker_metrics(snapshot)
        yield from _workflow_metrics(snapshot)
        yield from _upkeep_metrics(snapshot, upkeep)


def _read_totals(database: str) -> list[list[Any]]:
    """Return the attempts of all time by queue, task and outcome, those that were first counted long ago first."""
    columns = ("queue_name", "task_name", "outcome", "will_retry", "count")
    times = ("waits", "wait_seconds", "runs", "run_seconds")
    rows = Rollup.objects.using(database).filter(span=RollupSpan.TOTAL).order_by()
    return [row for _pk, *row in sorted(rows.values_list("pk", *columns, *times), key=itemgetter(0))]


def _read_upkeep(database: str) -> dict[str, Any]:
    """Return the seconds until the scheduler's last pass; on PostgreSQL also rows and the oldest transaction's age."""
    names = [lease_name(alias) for alias in backends_on(database)]
    leases = Lease.objects.using(database).filter(name__in=names).order_by("-renewed_at")
    asked = {"scheduler": Statement.part(leases.values_list(SecondsUntil("renewed_at"))[:1])}
    if connections[database].vendor == "postgresql":
        tables = sorted(model._meta.db_table for model in apps.get_app_config("horsies_django").get_models())
        asked["rows"] = Statement(postgres.TUPLES, (tables,))
        asked["oldest"] = Statement(postgres.OLDEST_TRANSACTION, ())
    return run_queries(database, asked)


def _task_metrics(totals: Sequence[list[Any]]) -> Iterator[Metric]:
    """Yield counters and histograms.

    A pair has a name if it is among those that were first counted. So no pair ever moves, and no series falls.
    """
    pairs = [pair for pair in dict.fromkeys((queue, task) for queue, task, *_ in totals) if pair != ("", "")]
    named, measured = set(pairs[:MAX_PAIRS]), set(pairs[:MAX_HISTOGRAMS])
    ended, retries = Counter[_Labels](), Counter[_Labels]()
    histograms = {name: defaultdict[_Labels, Counter[int]](Counter) for name in _HISTOGRAMS}
    seconds = defaultdict[_Labels, float](float)
    for queue, task, outcome, will_retry, count, *times in totals:
        labels = (queue, task) if (queue, task) in named else _OTHERS
        result = outcome_of(outcome, will_retry)
        if result == RETRIED:
            retries[labels] += count
        else:
            ended[*labels, result] += count
        labels = labels if (queue, task) in measured else _OTHERS
        for name, histogram, total in zip(_HISTOGRAMS, times[::2], times[1::2], strict=True):
            histograms[name][labels].update(merge([histogram]))
            seconds[name, *labels] += total
    yield _counter("horsies_tasks", "Tasks that ended after an attempt, since the first roll-up.", ended, "outcome")
    yield _counter(
        "horsies_task_retries", "Attempts after which the task was retried, since the first roll-up.", retries
    )
    bounds = [f"{bound:.10g}" for bound in BOUNDS]
    for name, text in _HISTOGRAMS.items():
        family = HistogramMetricFamily(name, text, labels=_PAIR)
        for labels, counts in sorted(histograms[name].items()):
            buckets = [*zip(bounds, counts_up_to(counts), strict=True), ("+Inf", counts.total())]
            family.add_metric(labels, buckets, seconds[name, *labels])
        yield family


def _counter(name: str, text: str, values: Mapping[_Labels, int], *labels: str) -> Metric:
    family = CounterMetricFamily(name, text, labels=[*_PAIR, *labels])
    for of, value in sorted(values.items()):
        family.add_metric(of, value)
    return family


#: The gauges of a queue. Those of queues without a name are added up; of seconds, the highest counts.
_QUEUE_GAUGES: Final = {
    "ready": "Tasks that are due and wait for a worker; a lower bound if there are very many.",
    "oldest_ready_seconds": "How long the oldest ready task has waited; 0 if there is none.",
    "blocked": "Tasks that wait for their limit, or for a paused workflow; a lower bound if there are very many.",
    "oldest_blocked_seconds": "How long the oldest task has waited for its limit; 0 if there is none.",
    "latency_warning_seconds": "The latency_warning of the settings; missing if there is none.",
    "running": "Tasks that a worker holds, claimed or running.",
    "scheduled": "Tasks that are due later.",
    "retrying": "Tasks that wait for a retry.",
    "awaiting": "Tasks that have begun and wait without a slot; a lower bound if there are many.",
    "paused": "Whether the queue is paused; of several queues, how many are.",
}


def _queue_values(queue: QueueMetrics) -> dict[str, float | None]:
    """Return the value of each gauge; None if it is unknown."""
    depth, threshold = queue.depth, queue.status.latency_warning
    return {
        "ready": queue.due,
        "oldest_ready_seconds": _or_zero(depth.waits, is_unknown=depth.is_more),
        "blocked": depth.blocked,
        "oldest_blocked_seconds": _or_zero(depth.blocked_waits, is_unknown=depth.is_more_blocked),
        "latency_warning_seconds": threshold.total_seconds() if threshold else None,
        "running": queue.status.held,
        "scheduled": queue.counts["scheduled"].number,
        "retrying": queue.counts["retrying"].number,
        "awaiting": queue.counts["awaiting"].number,
        "paused": queue.status.is_paused,
    }


def _or_zero(waits: float | None, *, is_unknown: bool) -> float | None:
    """Return the age of the oldest task; 0 if there is no task, None if that is unknown."""
    return 0.0 if waits is None and not is_unknown else waits


def _queue_metrics(snapshot: MetricsSnapshot, totals: Sequence[list[Any]]) -> Iterator[Metric]:
    """Yield the gauges of queues, those with the most attempts of all time by name."""
    attempts = Counter[str]()
    for name, _task, _outcome, _will_retry, count, *_ in totals:
        attempts[name] += count
    order = sorted(snapshot.queues, key=lambda queue: (-attempts[queue.name], queue.name))
    named = {queue.name for queue in (order if len(order) < MAX_SERIES else order[: MAX_SERIES - 1])}
    depths = snapshot.depths
    unlisted = {
        "oldest_ready_seconds": depths.waits if depths.is_more else None,
        "oldest_blocked_seconds": depths.blocked_waits if depths.is_more_blocked else None,
    }
    values_of_queues = [(queue.name if queue.name in named else OTHER, _queue_values(queue)) for queue in order]
    for name, text in _QUEUE_GAUGES.items():
        family = GaugeMetricFamily(f"horsies_queue_{name}", text, labels=_QUEUE)
        combine = max if name.endswith("_seconds") else sum
        values = defaultdict[str, list[float]](list)
        for label, value in [(label, of_queue[name]) for label, of_queue in values_of_queues] + [
            (OTHER, unlisted.get(name))
        ]:
            if value is not None:
                values[label].append(float(value))
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


def _upkeep_metrics(snapshot: MetricsSnapshot, upkeep: Mapping[str, Any]) -> Iterator[Metric]:
    live, dead = decode_rows(upkeep.get("rows")) or (None, None)
    values = {
        "horsies_reaper_last_pass_age_seconds": ("Time since the reaper's last pass.", snapshot.reaper_ago),
        "horsies_rollup_lag_seconds": (
            "Time since the end of the first attempt that is not counted; 0 if all are.",
            snapshot.rollup_lag,
        ),
        "horsies_scheduler_last_pass_age_seconds": (
            "Time since the scheduler's last pass, which is recorded every 15 seconds.",
            None if upkeep["scheduler"] is None else max(0.0, -float(upkeep["scheduler"])),
        ),
        "horsies_database_live_tuples": ("Rows of the queue's tables, as PostgreSQL estimates them.", live),
        "horsies_database_dead_tuples": ("Dead rows that vacuum has yet to remove.", dead),
        "horsies_database_oldest_transaction_seconds": (
            "Age of the oldest open transaction of the database.",
            max(0.0, float(upkeep["oldest"] or 0)) if "oldest" in upkeep else None,
        ),
    }
    for name, (text, value) in values.items():
        if value is not None:
            yield _gauge(name, text, value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
