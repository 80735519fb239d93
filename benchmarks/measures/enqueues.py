"""Measures enqueue rates while no worker runs."""

from __future__ import annotations

from typing import Final

from ..harness import Harness
from ..options import Options

WARM_UP: Final = 50
SINGLE: Final = 1_000
BULK: Final = 50_000

#: The limit for slower peers.
_MAX_BULK_IF_SLOW: Final = 10_000


def single(harness: Harness, options: Options) -> dict[str, float]:
    """Enqueue one by one, each in a transaction of its own."""
    harness.call("send_each", first=0, count=WARM_UP, pause=0)
    _, seconds = harness.timed("send_each", first=WARM_UP, count=SINGLE, pause=0)
    return {"calls/s": SINGLE / seconds}


def bulk(harness: Harness, options: Options) -> dict[str, float]:
    """Enqueue in bulk, in the fastest way that the peer documents."""
    share = harness.peer.task_share
    count = BULK if share == 1 else min(_MAX_BULK_IF_SLOW, max(500, int(BULK * share)))
    harness.call("send_many", first=0, count=WARM_UP, body="noop")
    _, seconds = harness.timed("send_many", first=WARM_UP, count=count, body="noop")
    return {"tasks/s": count / seconds, "tasks": count}
