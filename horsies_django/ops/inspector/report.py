"""What has become of the tasks that somebody acted on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self
from uuid import UUID

from .task_states import State

#: Tasks left alone that a report names; beyond that it only counts.
MAX_NAMED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Skipped:
    """A task that nothing was done to, the state that it was seen in (None: there is no such task), and why."""

    id: UUID
    state: State | str | None
    why: str

    def __str__(self) -> str:
        return f"{self.id}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """To how many tasks something was done, and which were left alone.

    Attributes:
        verb: What was to be done: ``run``, ``cancel``, ``retry``, ``move``, ``delete``, ``update``.
        done: To how many it was done; on a dry run, would have been.
        left: How many were left alone.
        reasons: Why, each with how many.
        left_alone: The first ``NAMED`` of them, without those that others changed at that very moment.
        is_dry: Whether nothing was to be changed.
    """

    verb: str
    done: int = 0
    left: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    left_alone: tuple[Skipped, ...] = ()
    is_dry: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether it was done to all that were meant."""
        return self.left == 0

    def with_batch(self, done: int, left_alone: Iterable[Skipped], unnamed: Mapping[str, int]) -> Self:
        """Return it with one batch more; ``unnamed`` are those left alone of which nobody knows which they are."""
        more = tuple(left_alone)
        reasons = Counter(self.reasons) + Counter(left.why for left in more) + Counter(unnamed)
        room = MAX_NAMED - len(self.left_alone)
        return replace(
            self,
            done=self.done + done,
            left=self.left + len(more) + sum(unnamed.values()),
            reasons=dict(reasons),
            left_alone=(*self.left_alone, *more[:room]),
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "verb": self.verb,
            "done": self.done,
            "left": self.left,
            "reasons": dict(self.reasons),
            "left_alone": [{"id": str(left.id), "state": left.state, "why": left.why} for left in self.left_alone],
            "is_dry": self.is_dry,
        }
