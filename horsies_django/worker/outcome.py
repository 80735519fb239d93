"""How a body came out."""

from __future__ import annotations

from dataclasses import dataclass

from ..models.claims import ClaimedTask, Ended


@dataclass(frozen=True, slots=True)
class Outcome:
    """A body that has ended: what to store, and what to say of it."""

    claim: ClaimedTask
    ended: Ended
    duration: float
    exception: BaseException | None = None
