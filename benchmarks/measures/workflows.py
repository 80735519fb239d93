"""How long a workflow of no-ops takes, from the call that starts it to its end in the peer's own store.

Every peer that has workflows takes a small fan; this queue also a chain, and a fan and a map of ten thousand.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from ..harness import Harness
from ..options import Options
from ..processes import WorkerGroup

#: Nodes beside the one at which a fan, or a map, comes together.
SMALL: Final = 500
CHAIN: Final = 1_000
WIDE: Final = 10_000

#: As many as any of them may number.
SLOTS: Final = WIDE + 1


class Duration(NamedTuple):
    """Seconds from the call: until it had returned, until the workflow had ended."""

    start: float
    whole: float


def workflows(harness: Harness, options: Options) -> dict[str, float]:
    """Run one workflow after the other with the same workers, which have run a small one before."""
    with harness.workers(options.processes) as (group, slots):
        run_workflow(harness, group, "fan", 2 * slots)
        small = run_workflow(harness, group, "fan", SMALL)
        figures = {f"fan of {SMALL:,}, s": small.whole, "its start, s": small.start}
        if harness.peer.in_depth:
            chain = run_workflow(harness, group, "chain", CHAIN)
            wide = run_workflow(harness, group, "fan", WIDE)
            mapped = run_workflow(harness, group, "map", WIDE)
            figures |= {
                f"chain of {CHAIN:,}, s": chain.whole,
                f"fan of {WIDE:,}, s": wide.whole,
                "start of that, s": wide.start,
                f"map over {WIDE:,}, s": mapped.whole,
            }
        return figures | {"slots": slots}


def run_workflow(harness: Harness, group: WorkerGroup, shape: str, count: int) -> Duration:
    """Run one, by itself. Bodies are numbered from 0, the one at the end is the last."""
    harness.settle()
    harness.probe.clear()
    began = time.monotonic()
    # What the peer does to write its nodes down in Python is part of its start.
    _, started = harness.timed("start_workflow", shape=shape, count=count)
    harness.wait_until_started(group, 0, count if shape == "chain" else count + 1)
    harness.wait_until_workflows_ended(group)
    return Duration(started, time.monotonic() - began)
