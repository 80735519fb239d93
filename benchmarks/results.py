"""The numbers of a run: gathered, summed up, and kept."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Summary:
    """What several rounds say."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Summary:
        """Sum up at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(slots=True)
class Results:
    """Every number of every round, by measure and peer, and what went wrong instead."""

    machine: dict[str, str]
    settings: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    rounds: dict[str, dict[str, list[Mapping[str, float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    failures: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, measure: str, peer: str, figures: Mapping[str, float], seconds: float) -> None:
        """Keep the numbers of one round, and how long it took from first to last."""
        self.rounds[measure][peer].append(figures)
        self.seconds[measure][peer].append(round(seconds, 1))

    def fail(self, measure: str, peer: str, reason: str) -> None:
        """Keep why there are none."""
        self.failures[measure][peer] = reason

    def summary(self, measure: str, peer: str, name: str) -> Summary | None:
        """Sum one number up over the rounds."""
        values = [figures[name] for figures in self.rounds[measure][peer] if name in figures]
        return Summary.of(values) if values else None

    def metrics(self, measure: str) -> list[str]:
        """Return the names of a measure's numbers, in the order in which they came."""
        found: dict[str, None] = {}
        for rounds in self.rounds[measure].values():
            for figures in rounds:
                found.update(dict.fromkeys(figures))
        return list(found)

    def as_json(self) -> dict[str, Any]:
        """Return everything, for a file."""
        return {
            "machine": self.machine,
            "settings": self.settings,
            "interrupted": self.interrupted,
            "versions": self.versions,
            "rounds": {measure: dict(peers) for measure, peers in self.rounds.items()},
            "seconds": {measure: dict(peers) for measure, peers in self.seconds.items()},
            "failures": {measure: dict(peers) for measure, peers in self.failures.items()},
        }
