"""Whether what lies about in the tables slows a drain: rows behind, in front, ended, not yet due."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import psycopg

from ..options import Options
from ..stage import Stage

#: What lies about: pending behind the drained ones, ended, due tomorrow with the highest priority, and, in front of the
#: drained ones, pending in a queue that the worker does not serve.
KINDS: Final = ("pending", "finished", "scheduled", "unserved")

#: Seconds after which a rate is told by what was drained so far.
_SEEN: Final = 10.0

#: A pinned drain is this many times as long as any other, for what it looks for comes with time.
PINNED: Final = 5


def depth(stage: Stage, options: Options) -> dict[str, float]:
    """Drain with each kind of rows about, in turn with an empty table."""
    count = options.tasks
    rates: dict[str, float] = {}
    for kind in ("", *KINDS):
        stage.begin_with(kind or "empty", partial(_lay, stage, kind, options))
        rates[kind] = _rate(_drained(stage, options, count, _SEEN))
    return {
        **{f"{kind} rows about, ratio": rates[kind] / rates[""] for kind in KINDS},
        "tasks/s, empty": rates[""],
        "rows": options.depth,
    }


def _lay(stage: Stage, kind: str, options: Options) -> None:
    """Enqueue what is drained, and what lies about: behind it, or else before it."""
    count = options.tasks
    if kind and kind != "pending":
        stage.call("lie", kind=kind, count=options.depth, number=count)
    stage.call("send_many", first=0, count=count, body="noop")
    if kind == "pending":
        stage.call("lie", kind=kind, count=options.depth, number=count)


def pinned(stage: Stage, options: Options) -> dict[str, float]:
    """Drain while a transaction that is older than all tasks stays open, so that no dead row can be cleaned away."""
    assert stage.postgres is not None
    count = PINNED * options.tasks
    with psycopg.connect(stage.url) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT pg_current_xact_id()")
        stage.fill(count)
        moments = _drained(stage, options, count)
    tenth = count // 10
    # The very first tasks are begun while processes still start.
    first, last = moments[tenth // 2 : tenth // 2 + tenth], moments[-tenth:]
    return {"last tenth to first": _rate(last) / _rate(first), "tasks/s": _rate(moments), "tasks": count}


def _drained(stage: Stage, options: Options, count: int, within: float = math.inf) -> list[float]:
    with stage.workers(options.processes) as (group, _):
        stage.wait_until_begun(group, 0, count, within)
    return stage.probe.times(0, count)


def _rate(moments: Sequence[float]) -> float:
    return (len(moments) - 1) / (moments[-1] - moments[0])
