"""The results of a run and their summaries."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Summary:
    """The median and the range of a metric over several rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Summary:
        """Summarize one or more values."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(slots=True)
class Results:
    """The metrics, durations and failures of every round, by measure and peer."""

    machine: dict[str, str]
    settings: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    rounds: dict[str, dict[str, list[Mapping[str, float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    failures: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, measure: str, peer: str, metrics: Mapping[str, float], seconds: float) -> None:
        """Add the metrics of one round and its total duration."""
        self.rounds[measure][peer].append(metrics)
        self.seconds[measure][peer].append(round(seconds, 1))

    def fail(self, measure: str, peer: str, reason: str) -> None:
        """Record why a peer has no results."""
        self.failures[measure][peer] = reason

    def summary(self, measure: str, peer: str, metric: str) -> Summary | None:
        """Summarize a metric over all rounds; None if no round has it."""
        values = [metrics[metric] for metrics in self.rounds[measure][peer] if metric in metrics]
        return Summary.of(values) if values else None

    def metrics(self, measure: str) -> list[str]:
        """Return the names of a measure's metrics, in order of first appearance."""
        found: dict[str, None] = {}
        for rounds in self.rounds[measure].values():
            for metrics in rounds:
                found.update(dict.fromkeys(metrics))
        return list(found)

    def as_json(self) -> dict[str, Any]:
        """Return all results as JSON-serializable values."""
        return {
            "machine": self.machine,
            "settings": self.settings,
            "interrupted": self.interrupted,
            "versions": self.versions,
            "rounds": {measure: dict(peers) for measure, peers in self.rounds.items()},
            "seconds": {measure: dict(peers) for measure, peers in self.seconds.items()},
            "failures": {measure: dict(peers) for measure, peers in self.failures.items()},
        }
