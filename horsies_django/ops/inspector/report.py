"""The report of an action on tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self
from uuid import UUID

from .task_states import State

#: Maximum number of skipped tasks that a report names; it counts the others.
MAX_NAMED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Skipped:
    """A task that the action skipped, its state (None if there is no such task), and the reason."""

    id: UUID
    state: State | str | None
    why: str

    def __str__(self) -> str:
        return f"{self.id}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How many tasks an action changed and which ones it skipped.

    Attributes:
        action: The name of the action: ``run``, ``cancel``, ``retry``, ``move``, ``delete`` or ``update``.
        done: How many tasks it changed, or would have changed on a dry run.
        left: How many tasks it skipped.
        reasons: The number of skipped tasks by reason.
        skipped: The first ``MAX_NAMED`` skipped tasks, without those that changed concurrently.
        is_dry: Whether it was a dry run.
    """

    action: str
    done: int = 0
    left: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    is_dry: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether no task was skipped."""
        return self.left == 0

    def with_batch(self, done: int, skipped: Iterable[Skipped], unnamed: Mapping[str, int]) -> Self:
        """Return the report with a batch added. ``unnamed`` counts unidentified skipped tasks by reason."""
        more = tuple(skipped)
        reasons = Counter(self.reasons) + Counter(left.why for left in more) + Counter(unnamed)
        room = MAX_NAMED - len(self.skipped)
        return replace(
            self,
            done=self.done + done,
            left=self.left + len(more) + sum(unnamed.values()),
            reasons=dict(reasons),
            skipped=(*self.skipped, *more[:room]),
        )

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return {
            "action": self.action,
            "done": self.done,
            "left": self.left,
            "reasons": dict(self.reasons),
            "skipped": [{"id": str(left.id), "state": left.state, "why": left.why} for left in self.skipped],
            "is_dry": self.is_dry,
        }
