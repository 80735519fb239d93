"""What one turn of the pump has done, and why its last one was the last."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ..models.claims import ClaimedTask
from .lanes import Lane
from .outcome import Outcome


class Leaving(StrEnum):
    """Why a runner leaves."""

    DONE = "done"
    SPENT = "spent"  # it has run as many tasks, or takes as much memory, as a runner may
    DISMISSED = "dismissed"  # an operator has asked for it
    STUCK = "stuck"  # a body can't be stopped but with the process


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
