"""All measures, by their name on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ..harness import Harness
from ..options import Options
from ..probe import SLEEP_SECONDS
from ..registry import POSTGRES, SQLITE, Peer
from . import (
    coroutines,
    costs,
    depths,
    drains,
    enqueues,
    idles,
    latencies,
    loads,
    long_transactions,
    neighbours,
    orms,
    retentions,
    sleeps,
    steps,
    workflows,
)


def _not_on_sqlite(peer: Peer) -> bool:
    return peer.store != SQLITE


def _on_postgres(peer: Peer) -> bool:
    return peer.store == POSTGRES


def _measured_in_depth(peer: Peer) -> bool:
    return peer.in_depth


def _has_neighbours(peer: Peer) -> bool:
    return peer.store == POSTGRES and peer.module in ("ours", "pgqueuer", "graphile")


def _has_long_transactions(peer: Peer) -> bool:
    return peer.store == POSTGRES and peer.module in ("ours", "pgqueuer", "awa")


def _has_coroutines(peer: Peer) -> bool:
    return peer.name == "horsies-django"


def _uses_orm(peer: Peer) -> bool:
    return peer.name in ("horsies-django-8", "horsies-django-before", "django-ox") or peer.only == "orm"


def _has_floor(peer: Peer) -> bool:
    return peer.name in ("horsies-django", "horsies-django-8")


def _has_workflows(peer: Peer) -> bool:
    return peer.workflows


def _has_steps(peer: Peer) -> bool:
    return peer.name in ("horsies-django", "horsies-django-8") or peer.only == "steps"


def _in_table(metric: str) -> bool:
    return True


def _on_sqlite(peer: Peer) -> bool:
    return peer.store == SQLITE


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure.

    ``max_tasks`` returns the most tasks it numbers. Peers are ranked by ``main_metric``. ``rounds`` is the default
    number of rounds: rates vary and need more than counts. The table leaves out metrics that are not ``in_table``. A
    peer that needs more than ``max_seconds`` gets no further turn. One not ``by_default`` runs only by name.
    """

    about: str
    run: Callable[[Harness, Options], Mapping[str, float]]
    max_tasks: Callable[[Options], int]
    main_metric: str
    takes_part: Callable[[Peer], bool] = _not_on_sqlite
    lower_is_better: bool = False
    rounds: int = 3
    in_table: Callable[[str], bool] = _in_table
    max_seconds: float = 30.0
    by_default: bool = True

    def rounds_for(self, options: Options) -> int:
        """Return how many rounds to run: ``--rounds`` if given, else the default of this measure."""
        return options.rounds or self.rounds


MEASURES: Final = {
    "drain": Measure(
        "rate of draining a full queue of no-ops",
        drains.drain,
        lambda options: options.tasks,
        "tasks/s",
    ),
    "floor": Measure(
        "the drain beside bare loops that send the worker's statement",
        drains.floor,
        lambda options: options.tasks,
        "share of bare loops",
        _has_floor,
    ),
    "sqlite": Measure(
        "the same on SQLite, with one worker process",
        drains.drain,
        lambda options: options.tasks,
        "tasks/s",
        _on_sqlite,
    ),
    "latency": Measure(
        "from the enqueue call to the start of the body, with idle workers",
        latencies.latency,
        lambda options: latencies.WARM_UP + latencies.SAMPLES,
        "p50 ms",
        lower_is_better=True,
    ),
    "load": Measure(
        "from the return of the enqueue call to the start of the body, while tasks are sent on a timetable",
        loads.load,
        lambda options: loads.count_tasks(loads.LOADS),
        "400/s p99 ms",
        lower_is_better=True,
        rounds=2,
        in_table=loads.is_in_table,
        max_seconds=90.0,
    ),
    "curve": Measure(
        "the same, at rates from 1 to 15,000 a second",
        loads.curve,
        lambda options: loads.count_tasks(loads.CURVE),
        "400/s p50 ms",
        lower_is_better=True,
        rounds=1,
        in_table=loads.is_in_curve_table,
        max_seconds=90.0,
    ),
    "enqueue": Measure(
        "single enqueue calls", enqueues.single, lambda options: enqueues.SINGLE + enqueues.WARM_UP, "calls/s"
    ),
    "bulk": Measure(
        "the fastest documented bulk enqueue",
        enqueues.bulk,
        lambda options: enqueues.WARM_UP + enqueues.BULK,
        "tasks/s",
    ),
    "sleep": Measure(
        f"tasks that sleep {1_000 * SLEEP_SECONDS:.0f} ms, in {sleeps.SLOTS} slots",
        sleeps.sleep,
        lambda options: sleeps.MAX_TASKS,
        "share of the ideal",
        rounds=2,
    ),
    "orm": Measure(
        "bodies that read a row and save it, at default settings and at recommended ones",
        orms.orm,
        orms.max_tasks,
        "functions, recommended, tasks/s",
        _uses_orm,
        max_seconds=300.0,
    ),
    "coroutines": Measure(
        f"a drain of coroutines beside that of threads, and waits beside {coroutines.IN_FLIGHT:,} in one process",
        coroutines.coroutines,
        coroutines.max_tasks,
        "tasks/s / threads'",
        _has_coroutines,
        rounds=2,
        max_seconds=120.0,
    ),
    "cost": Measure(
        "statements, commits and WAL bytes of a task on PostgreSQL",
        costs.cost,
        lambda options: options.tasks,
        "WAL bytes/task",
        _on_postgres,
        lower_is_better=True,
        rounds=1,
    ),
    "idle": Measure(
        "memory, CPU and statements of idle workers",
        idles.idle,
        lambda options: idles.WARM_UP,
        "MiB",
        lower_is_better=True,
        rounds=1,
        max_seconds=90.0,
    ),
    "depth": Measure(
        "a drain beside many other rows, relative to an empty table",
        depths.depth,
        lambda options: options.tasks + 1,
        "pending rows, ratio",
        _measured_in_depth,
        rounds=2,
    ),
    "pinned": Measure(
        "a drain while an old transaction stays open",
        depths.pinned,
        lambda options: depths.PINNED_FACTOR * options.tasks,
        "last tenth to first",
        _measured_in_depth,
        rounds=2,
    ),
    "long": Measure(
        f"{long_transactions.RATE} tasks a second for minutes, beside overlapping long transactions and a restart",
        long_transactions.long_transactions,
        long_transactions.max_tasks,
        "last tenth to baseline",
        _has_long_transactions,
        rounds=1,
        max_seconds=math.inf,
        by_default=False,
    ),
    "retention": Measure(
        "a drain for minutes while as many tasks are deleted as end",
        retentions.retention,
        retentions.max_tasks,
        "last tenth to first",
        _has_floor,
        rounds=1,
        max_seconds=math.inf,
        by_default=False,
    ),
    "neighbour": Measure(
        "short transactions of another application in the same database, beside a drain",
        neighbours.neighbour,
        lambda options: neighbours.FACTOR * options.tasks,
        "p99 / alone",
        _has_neighbours,
        lower_is_better=True,
        rounds=2,
    ),
    "workflows": Measure(
        "workflows of no-ops, from the start call to the end",
        workflows.workflows,
        lambda options: workflows.MAX_TASKS,
        f"fan of {workflows.SMALL:,}, s",
        _has_workflows,
        lower_is_better=True,
    ),
    "steps": Measure(
        f"runs of {steps.STEPS} no-op steps, whose values are kept",
        steps.steps,
        steps.max_tasks,
        "runs/s",
        _has_steps,
        max_seconds=120.0,
    ),
}
