"""Measures a workflow of no-ops, from the start call to its end in the peer's own store.

Every peer with workflows runs a small fan. Peers measured in depth also run a chain, and a large fan and map.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from ..harness import Harness
from ..options import Options
from ..processes import WorkerGroup

#: Nodes, without the final node of a fan or a map.
SMALL: Final = 500
CHAIN: Final = 1_000
WIDE: Final = 10_000

#: The most tasks of any of these workflows.
MAX_TASKS: Final = WIDE + 1


class Durations(NamedTuple):
    """Seconds of the start call, and until the workflow ended."""

    start: float
    total: float


def workflows(harness: Harness, options: Options) -> dict[str, float]:
    """Warm the workers up with a small workflow, then run one workflow after the other."""
    with harness.workers(options.processes) as (group, slots):
        run_workflow(harness, group, "fan", 2 * slots)
        small = run_workflow(harness, group, "fan", SMALL)
        figures = {f"fan of {SMALL:,}, s": small.total, "start call, s": small.start}
        if harness.peer.in_depth:
            chain = run_workflow(harness, group, "chain", CHAIN)
            wide = run_workflow(harness, group, "fan", WIDE)
            mapped = run_workflow(harness, group, "map", WIDE)
            figures |= {
                f"chain of {CHAIN:,}, s": chain.total,
                f"fan of {WIDE:,}, s": wide.total,
                f"start call of fan of {WIDE:,}, s": wide.start,
                f"map over {WIDE:,}, s": mapped.total,
            }
        return figures | {"slots": slots}


def run_workflow(harness: Harness, group: WorkerGroup, shape: str, count: int) -> Durations:
    """Run one workflow. Its tasks are numbered from 0; the final node has the highest number."""
    harness.settle()
    harness.probe.clear()
    began = time.monotonic()
    # Building the workflow in Python is part of the start call.
    _, started = harness.timed("start_workflow", shape=shape, count=count)
    harness.wait_until_started(group, 0, count if shape == "chain" else count + 1)
    harness.wait_until_workflows_ended(group)
    return Durations(started, time.monotonic() - began)
