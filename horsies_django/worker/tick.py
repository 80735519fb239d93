"""What one turn of the pump has done."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..models.claims import ClaimedTask
from .execution_result import ExecutionResult
from .slot_pool import SlotPool


@dataclass(slots=True)
class Tick:
    """What one tick has written, to be carried out in memory once it is committed."""

    began: float = field(default_factory=time.monotonic)
    stored: Sequence[ExecutionResult] = ()
    limit_keys: Collection[str] = ()  # of nodes that have begun with that
    blocked: Sequence[ExecutionResult] = ()
    claimed: int = 0
    beat: bool = False
    is_dismissed: bool = False
    doubted: bool = False
    started: list[tuple[SlotPool, list[ClaimedTask]]] = field(default_factory=list)
    prefetched: list[tuple[SlotPool, list[ClaimedTask]]] = field(default_factory=list)
    cooled: list[SlotPool] = field(default_factory=list)
    handed_back: list[tuple[SlotPool, list[ClaimedTask]]] = field(
        default_factory=list
    )  # and what has to wait with that
