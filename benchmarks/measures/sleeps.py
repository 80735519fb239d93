"""How well the slots of a worker are kept busy when bodies wait 10 ms, as most that speak to the network do."""

from __future__ import annotations

import time
from typing import Final

from ..harness import Harness
from ..options import Options
from ..probe import SLEEP_SECONDS

#: Bodies at once, over all processes of a peer that lets one choose.
SLOTS: Final = 16

#: Naps for each slot; fewer where the slots are far from busy, which is seen soon.
_TASKS_PER_SLOT: Final = 150
_TASKS_PER_SLOT_IF_SLOW: Final = 50
_SLOW_TASK_SHARE: Final = 0.05

#: The most that any peer's slots come to.
MAX_TASKS: Final = _TASKS_PER_SLOT * 4 * SLOTS


def sleep(harness: Harness, options: Options) -> dict[str, float]:
    """Empty a queue of sleeps."""
    _, total_slots = harness.call("worker_commands", processes=options.processes, slots=SLOTS // options.processes)
    count = min(
        MAX_TASKS,
        (_TASKS_PER_SLOT_IF_SLOW if harness.peer.task_share <= _SLOW_TASK_SHARE else _TASKS_PER_SLOT) * total_slots,
    )
    harness.enqueue(count, "sleep")
    with harness.workers(options.processes, SLOTS // options.processes) as (group, slots):
        harness.wait_until_started(group, 0, count)
        harness.wait_until_finished(group)
        ended = time.monotonic()
    ideal = SLEEP_SECONDS * count / slots
    return {
        "share of the ideal": ideal / (ended - harness.probe.start_times(0, count)[0]),
        "slots": slots,
        "tasks": count,
    }
