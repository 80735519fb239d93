"""Samples of memory, connections and tables, and the slope of each."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django.db import connection

#: The tables of a task's life, whose size is measured with that of their indexes.
_TABLES: Final = (
    "horsies_tasks",
    "horsies_task_attempts",
    "horsies_heartbeats",
    "horsies_workflows",
    "horsies_workflow_tasks",
    "horsies_rollups",
)


@dataclass(frozen=True, slots=True)
class Slope:
    """A straight line through the samples of one quantity; ``per_hour`` is its slope, ``error`` the slope's error."""

    name: str
    first: float
    last: float
    per_hour: float
    error: float

    def __str__(self) -> str:
        return f"{self.name:42} {self.first:14,.1f} {self.last:14,.1f} {self.per_hour:+14,.1f} ± {self.error:,.1f}"


def sample(worker: int) -> dict[str, float]:
    """Return the quantities now, by name. ``worker`` is the process that started all others of the worker."""
    return {**_memory(worker), **_database()}


def _memory(worker: int) -> dict[str, float]:
    """Return the proportional set size (PSS) of each process of the worker in MiB, the oldest first, and their sum."""
    sizes = [_pss(pid) for pid in _family(worker)]
    each = {f"memory of process {number} (MiB)": size for number, size in enumerate(sizes)}
    return {**each, "memory of all (MiB)": sum(sizes), "processes": len(sizes)}


def _family(pid: int) -> list[int]:
    """Return a process and its descendants. They share its session."""
    session = os.getsid(pid)
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == session:
                pids.append(int(folder.name))
        except ProcessLookupError:
            continue
    return sorted(pids)


def _pss(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _database() -> dict[str, float]:
    found: dict[str, float] = {}
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        found["connections"] = cursor.fetchone()[0]
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND state LIKE 'idle in transaction%'"
        )
        found["open idle transactions"] = cursor.fetchone()[0]
        for table in _TABLES:
            cursor.execute(
                "SELECT pg_table_size(relid), pg_indexes_size(relid), n_live_tup, n_dead_tup"
                " FROM pg_stat_user_tables WHERE relname = %s",
                [table],
            )
            heap, indexes, live, dead = cursor.fetchone()
            found |= {
                f"{table} (MiB)": heap / 2**20,
                f"{table}, indexes (MiB)": indexes / 2**20,
                f"{table}, rows": live,
                f"{table}, dead rows": dead,
            }
    return found


def slopes(times: Sequence[float], samples: Sequence[Mapping[str, float]]) -> list[Slope]:
    """Return the slope of each quantity. ``times`` are in seconds. Needs three samples or more."""
    names = dict.fromkeys(name for one in samples for name in one)
    return [_slope(name, times, [one.get(name, 0.0) for one in samples]) for name in names]


def _slope(name: str, times: Sequence[float], values: Sequence[float]) -> Slope:
    """Fit a line by least squares; its error is the standard error of the slope."""
    hours = [seconds / 3_600 for seconds in times]
    slope, start = statistics.linear_regression(hours, values)
    rest = sum((value - start - slope * hour) ** 2 for hour, value in zip(hours, values, strict=True))
    mean = statistics.fmean(hours)
    spread = sum((hour - mean) ** 2 for hour in hours)
    tenth = max(1, len(values) // 10)
    error = (rest / (len(values) - 2) / spread) ** 0.5
    return Slope(name, statistics.fmean(values[:tenth]), statistics.fmean(values[-tenth:]), slope, error)
