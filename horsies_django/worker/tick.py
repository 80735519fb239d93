"""What one turn of the pump has done."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..models.claims import ClaimedTask
from .execution_result import Outcome
from .slots import Lane


@dataclass(slots=True)
class Tick:
    """What one tick has written, to be carried out in memory once it is committed."""

    began: float = field(default_factory=time.monotonic)
    stored: Sequence[Outcome] = ()
    limit_keys: Collection[str] = ()  # of nodes that have begun with that
    blocked: Sequence[Outcome] = ()
    claimed: int = 0
    beat: bool = False
    is_dismissed: bool = False
    doubted: bool = False
    started: list[tuple[Lane, list[ClaimedTask]]] = field(default_factory=list)
    prefetched: list[tuple[Lane, list[ClaimedTask]]] = field(default_factory=list)
    cooled: list[Lane] = field(default_factory=list)
    handed_back: list[tuple[Lane, list[ClaimedTask]]] = field(default_factory=list)  # and what has to wait with that
