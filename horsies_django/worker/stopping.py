"""Stopping the bodies of a worker that has no supervisor, so that their tasks can be put back."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..core.exceptions import TaskRevoked
from .execution import Execution
from .execution_result import ExecutionResult, NotStarted
from .inbox import Command, Inbox
from .slot_pool import SlotPool
from .watchdog import INTERRUPT_INTERVAL


def stop_bodies(
    pools: Sequence[SlotPool], inbox: Inbox, seconds: float
) -> tuple[list[ExecutionResult], set[Execution]]:
    """Tell all bodies to stop and wait for them, ``seconds`` at most; return the outcomes, and which still run."""
    running = {execution for pool in pools for execution in pool.running.values()}
    ended: list[ExecutionResult] = []
    deadline = time.monotonic() + seconds
    for execution in running:
        execution.request_stop(TaskRevoked)
    while running and time.monotonic() < deadline:
        for execution in running:
            execution.interrupt()
        for item in inbox.take(INTERRUPT_INTERVAL):
            if isinstance(item, ExecutionResult):
                ended.append(item)
                running.discard(item.execution)
            elif isinstance(item, NotStarted) and any(pool.hand_back(item.execution) for pool in pools):
                running.discard(item.execution)
            elif item is Command.ABORT:
                deadline = time.monotonic()
    return ended, running
