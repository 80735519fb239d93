"""Whether what lies about in the tables slows a drain: rows behind, in front, ended, not yet due."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import psycopg

from ..harness import Harness
from ..options import Options

#: What lies about: pending behind the drained ones, ended, due tomorrow with the highest priority, and, in front of the
#: drained ones, pending in a queue that the worker does not serve.
KINDS: Final = ("pending", "finished", "scheduled", "unserved")

#: Seconds after which a rate is told by what was drained so far.
_MAX_SECONDS: Final = 10.0

#: A pinned drain is this many times as long as any other, for what it looks for comes with time.
PINNED_FACTOR: Final = 5


def depth(harness: Harness, options: Options) -> dict[str, float]:
    """Drain with each kind of rows about, in turn with an empty table."""
    count = options.tasks
    rates: dict[str, float] = {}
    for kind in ("", *KINDS):
        harness.start_from_snapshot(kind or "empty", partial(_enqueue, harness, kind, options))
        rates[kind] = _rate(_drain(harness, options, count, _MAX_SECONDS))
    return {
        **{f"{kind} rows about, ratio": rates[kind] / rates[""] for kind in KINDS},
        "tasks/s, empty": rates[""],
        "rows": options.depth,
    }


def _enqueue(harness: Harness, kind: str, options: Options) -> None:
    """Enqueue what is drained, and what lies about: behind it, or else before it."""
    count = options.tasks
    if kind and kind != "pending":
        harness.call("preload", kind=kind, count=options.depth, number=count)
    harness.call("send_many", first=0, count=count, body="noop")
    if kind == "pending":
        harness.call("preload", kind=kind, count=options.depth, number=count)


def pinned(harness: Harness, options: Options) -> dict[str, float]:
    """Drain while a transaction that is older than all tasks stays open, so that no dead row can be cleaned away."""
    assert harness.postgres is not None
    count = PINNED_FACTOR * options.tasks
    with psycopg.connect(harness.url) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT pg_current_xact_id()")
        harness.enqueue(count)
        start_times = _drain(harness, options, count)
    tenth = count // 10
    # The very first tasks are begun while processes still start.
    first, last = start_times[tenth // 2 : tenth // 2 + tenth], start_times[-tenth:]
    return {"last tenth to first": _rate(last) / _rate(first), "tasks/s": _rate(start_times), "tasks": count}


def _drain(harness: Harness, options: Options, count: int, within: float = math.inf) -> list[float]:
    with harness.workers(options.processes) as (group, _):
        harness.wait_until_started(group, 0, count, within)
    return harness.probe.start_times(0, count)


def _rate(start_times: Sequence[float]) -> float:
    return (len(start_times) - 1) / (start_times[-1] - start_times[0])
