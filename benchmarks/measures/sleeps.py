"""Measures how busy a worker keeps its slots with bodies that sleep 10 ms, like a body that uses the network."""

from __future__ import annotations

import time
from typing import Final

from ..harness import Harness
from ..options import Options
from ..probe import SLEEP_SECONDS

#: Slots over all processes, for peers with a configurable number.
SLOTS: Final = 16

#: Tasks for each slot; fewer for peers with at most this ``task_share``, whose slots are mostly idle.
_TASKS_PER_SLOT: Final = 150
_TASKS_PER_SLOT_IF_SLOW: Final = 50
_SLOW_TASK_SHARE: Final = 0.05

#: The limit for any peer.
MAX_TASKS: Final = _TASKS_PER_SLOT * 4 * SLOTS


def sleep(harness: Harness, options: Options) -> dict[str, float]:
    """Drain a queue of sleeping tasks."""
    _, total_slots = harness.call("worker_commands", processes=options.processes, slots=SLOTS // options.processes)
    per_slot = _TASKS_PER_SLOT_IF_SLOW if harness.peer.task_share <= _SLOW_TASK_SHARE else _TASKS_PER_SLOT
    count = min(MAX_TASKS, per_slot * total_slots)
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
