"""What the check has found: rows that would break, grouped by name and reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakage:
    """Rows that would break for one reason.

    Attributes:
        what: ``task``, ``queue``, ``schedule``, ``node``, ``condition`` or ``workflow``.
        name: The name that the rows have.
        reason: Why they would break, as a clause.
        count: How many rows were found.
        sample: How many rows were examined to find them; None if that was each row of this name.
        is_at_least: Whether there may be more rows, because not all could be read.
        example: The id of one of them; of a node, the ids of its workflow and its own.
    """

    what: str
    name: str
    reason: str
    count: int
    sample: int | None
    is_at_least: bool
    example: str

    def __str__(self) -> str:
        return f"{self.what}: {self.name}: {self.reason} ({self._rows()}, e.g. {self.example})"

    def _rows(self) -> str:
        if self.sample is not None:
            return f"{self.count:,} of {self.sample:,} rows that were examined"
        rows = f"{self.count:,} {'row' if self.count == 1 else 'rows'}"
        return f"at least {rows}" if self.is_at_least else rows


@dataclass(frozen=True, slots=True)
class DeployReport:
    """The result of a check.

    Attributes:
        breakages: What would break, sorted.
        read: How many rows of each kind were read.
        unread: A sentence for each part that was not read to its end.
    """

    breakages: Sequence[Breakage]
    read: Mapping[str, int]
    unread: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        breakages = [asdict(breakage) for breakage in self.breakages]
        return {"breakages": breakages, "read": dict(self.read), "unread": list(self.unread)}


class _Reason(NamedTuple):
    what: str
    name: str
    reason: str
    is_sampled: bool


class Findings:
    """Collects problems while rows are read."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter(tasks=0, nodes=0, schedules=0)
        self.unread: list[str] = []
        self._counts: Counter[_Reason] = Counter()
        self._examples: dict[_Reason, str] = {}
        self._rows: Counter[tuple[str, str]] = Counter()
        self._examined: Counter[tuple[str, str]] = Counter()
        self._partial: set[str] = set()

    def add(self, what: str, name: str, reason: str, example: object, count: int = 1) -> None:
        """Add rows that break because of their name, whatever else is in them."""
        self._add(_Reason(what, name, reason, False), example, count)

    def add_examined(self, what: str, name: str, reason: str, example: object) -> None:
        """Add a row that breaks because of its contents."""
        self._add(_Reason(what, name, reason, True), example, 1)

    def record_examined(self, what: str, name: str, rows: int, examined: int) -> None:
        """Record that of so many rows of this name so many were examined."""
        self._rows[what, name] += rows
        self._examined[what, name] += examined

    def record_unread(self, sentence: str, *whats: str) -> None:
        """Record that there are more rows than were read, for which more may break."""
        self._partial.update(whats)
        self.unread.append(sentence)

    def report(self) -> DeployReport:
        """Return everything that was found."""
        found = [self._breakage(reason, count) for reason, count in sorted(self._counts.items())]
        return DeployReport(found, dict(self.read), self.unread)

    def _add(self, reason: _Reason, example: object, count: int) -> None:
        self._counts[reason] += count
        self._examples.setdefault(reason, str(example))

    def _breakage(self, reason: _Reason, count: int) -> Breakage:
        what, name, why, is_sampled = reason
        rows, examined = self._rows[what, name], self._examined[what, name]
        return Breakage(
            what=what,
            name=name,
            reason=why,
            count=count,
            sample=examined if is_sampled and examined < rows else None,
            is_at_least=what in self._partial,
            example=self._examples[reason],
        )
