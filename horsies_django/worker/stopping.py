"""Stopping the bodies of a worker that has no supervisor, so that their tasks can be put back."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..core.exceptions import TaskRevoked
from .commands import Inbox, Word
from .execution import Run
from .execution_result import Outcome, Unbegun
from .slots import Lane
from .watchdog import INSIST


def stop_bodies(lanes: Sequence[Lane], inbox: Inbox, seconds: float) -> tuple[list[Outcome], set[Run]]:
    """Tell all bodies to stop and wait for them, ``seconds`` at most; return the outcomes, and which still run."""
    running = {run for lane in lanes for run in lane.running.values()}
    ended: list[Outcome] = []
    deadline = time.monotonic() + seconds
    for run in running:
        run.tell(TaskRevoked)
    while running and time.monotonic() < deadline:
        for run in running:
            run.interrupt()
        for item in inbox.take(INSIST):
            if isinstance(item, Outcome):
                ended.append(item)
                running.discard(item.run)
            elif isinstance(item, Unbegun) and any(lane.take_back(item.run) for lane in lanes):
                running.discard(item.run)
            elif item is Word.ABORT:
                deadline = time.monotonic()
    return ended, running
