"""Measures how other rows in the table, or an old transaction, slow a drain down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import psycopg

from ..harness import Harness
from ..options import Options

#: The preloaded rows: pending and enqueued later; finished; scheduled for tomorrow with the highest priority; waiting
#: for a retry tomorrow; pending and enqueued earlier in a queue that the worker does not serve.
KINDS: Final = ("pending", "finished", "scheduled", "retrying", "unserved")

#: Seconds after which a drain ends; its rate is that of the tasks started so far.
_MAX_SECONDS: Final = 10.0

#: A pinned drain has this many times the tasks of others, because dead rows slow it down only over time.
PINNED_FACTOR: Final = 5


def depth(harness: Harness, options: Options) -> dict[str, float]:
    """Drain an otherwise empty table, then beside each kind of preloaded rows."""
    count = options.tasks
    rates: dict[str, float] = {}
    for kind in ("", *KINDS):
        harness.start_from_snapshot(kind or "empty", partial(_enqueue, harness, kind, options))
        rates[kind] = _rate(_drain(harness, options, count, _MAX_SECONDS))
    return {
        **{f"{kind} rows, ratio": rates[kind] / rates[""] for kind in KINDS},
        "tasks/s, empty": rates[""],
        "rows": options.depth,
    }


def _enqueue(harness: Harness, kind: str, options: Options) -> None:
    """Enqueue the tasks to drain, and preload the other rows: pending ones after them, all others before."""
    count = options.tasks
    if kind and kind != "pending":
        harness.call("preload", kind=kind, count=options.depth, number=count)
    harness.call("send_many", first=0, count=count, body="noop")
    if kind == "pending":
        harness.call("preload", kind=kind, count=options.depth, number=count)


def pinned(harness: Harness, options: Options) -> dict[str, float]:
    """Drain while a transaction older than all tasks stays open, so that vacuum can remove no dead row."""
    assert harness.postgres is not None
    count = PINNED_FACTOR * options.tasks
    with psycopg.connect(harness.url) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT pg_current_xact_id()")
        harness.enqueue(count)
        start_times = _drain(harness, options, count)
    tenth = count // 10
    # Skip the first tasks, which start while worker processes are still starting.
    first, last = start_times[tenth // 2 : tenth // 2 + tenth], start_times[-tenth:]
    return {"last tenth to first": _rate(last) / _rate(first), "tasks/s": _rate(start_times), "tasks": count}


def _drain(harness: Harness, options: Options, count: int, within: float = math.inf) -> list[float]:
    with harness.workers(options.processes) as (group, _):
        harness.wait_until_started(group, 0, count, within)
    return harness.probe.start_times(0, count)


def _rate(start_times: Sequence[float]) -> float:
    return (len(start_times) - 1) / (start_times[-1] - start_times[0])
