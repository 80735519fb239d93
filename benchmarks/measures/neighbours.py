"""Measures how much a drain slows down the short transactions of another application in the same database."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from ..drivers import PeerError
from ..harness import Harness
from ..neighbour import TABLE
from ..options import Options
from ..registry import CHECKOUT
from .loads import percentile

#: The drain has this many times the tasks of others, so that enough transactions run beside a fast one.
FACTOR: Final = 2

#: Seconds of transactions that are not measured, and then of those without a drain.
_WARM_UP: Final = 1.0
_ALONE: Final = 3.0

#: Dead tuples: each update and each delete leaves one.
_DEAD: Final = "SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables WHERE relname <> %s"


class _Neighbour:
    """A running ``benchmarks.neighbour``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def stop(self) -> list[tuple[float, float]]:
        """Stop it; return when each transaction began and its milliseconds."""
        output, _ = self._process.communicate("stop\n")
        if self._process.returncode:
            raise PeerError(f"the neighbour exited with status {self._process.returncode}")
        return [(began, 1_000 * seconds) for began, seconds in json.loads(output)]


def neighbour(harness: Harness, options: Options) -> dict[str, float]:
    """Run transactions alone, then beside a drain of no-ops."""
    count = FACTOR * options.tasks
    harness.enqueue(count)
    with _run_neighbour(harness.url) as running:
        time.sleep(_WARM_UP)
        alone_from, wal_before_alone = time.monotonic(), _wal_bytes(harness)
        time.sleep(_ALONE)
        alone_until, wal_after_alone = time.monotonic(), _wal_bytes(harness)
        dead_before = _dead_tuples(harness)
        with harness.workers(options.processes) as (group, slots):
            wal_before = _wal_bytes(harness)
            harness.wait_until_started(group, 0, count)
            harness.wait_until_finished(group)
            ended, wal_after = time.monotonic(), _wal_bytes(harness)
            transactions = running.stop()
        # Servers report the counts of the workers when their connections end.
        dead_after = _dead_tuples(harness)
    drained_from = harness.probe.start_times(0, count)[0]
    alone = _between(transactions, alone_from, alone_until)
    beside = _between(transactions, drained_from, ended)
    if not alone or not beside:
        raise PeerError("no transaction ran beside the drain, which needs more --tasks")
    neighbour_wal = (wal_after_alone - wal_before_alone) / len(alone)
    return {
        "p50 ms": percentile(beside, 50),
        "p99 ms": percentile(beside, 99),
        "p50 / alone": percentile(beside, 50) / percentile(alone, 50),
        "p99 / alone": percentile(beside, 99) / percentile(alone, 99),
        "alone p50 ms": percentile(alone, 50),
        "alone p99 ms": percentile(alone, 99),
        "dead tuples/task": (dead_after - dead_before) / count,
        "WAL bytes/task": (wal_after - wal_before - neighbour_wal * len(beside)) / count,
        "tasks/s": count / (ended - drained_from),
        "transactions": len(beside),
        "slots": slots,
    }


@contextmanager
def _run_neighbour(url: str) -> Iterator[_Neighbour]:
    """Run the other application during the block."""
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "benchmarks.neighbour", url],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield _Neighbour(process)
        finally:
            process.kill()


def _between(transactions: Sequence[tuple[float, float]], start: float, end: float) -> list[float]:
    """Return the sorted milliseconds of the transactions that began in a period."""
    return sorted(milliseconds for began, milliseconds in transactions if start <= began < end)


def _wal_bytes(harness: Harness) -> int:
    counters = harness.counters()
    assert counters is not None
    return counters.wal_bytes


def _dead_tuples(harness: Harness) -> int:
    with psycopg.connect(harness.url) as connection:
        row: Any = connection.execute(_DEAD, [TABLE]).fetchone()
    return int(row[0])
