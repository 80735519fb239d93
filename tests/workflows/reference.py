"""A reference model of workflows in plain Python, without a database and without workers.

The outcome of a node depends on the outcomes of its dependencies, not on their order in time. So one pass over the
nodes in order of dependency computes all outcomes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

COMPLETED, FAILED, SKIPPED = "COMPLETED", "FAILED", "SKIPPED"
#: The status of a node that its own condition has skipped, which does not count as a failure.
SKIPPED_BY_CONDITION = "SKIPPED_BY_CONDITION"


@dataclass(frozen=True)
class Spec:
    """A node. It fails in the first ``fails`` runs; ``condition`` is what its condition returns, None without one.

    A map or a subworkflow keeps its completed nodes, so after a cancel it may have nothing left to run.
    """

    waits_for: tuple[int, ...] = ()
    join: str = "all"
    min_success: int | None = None
    allows: bool = False
    fails: int = 0
    condition: bool | None = None
    kind: str = "task"


@dataclass
class Reference:
    """A workflow. ``runs`` counts the runs of the body of each node."""

    specs: Sequence[Spec]
    states: dict[int, str] = field(default_factory=dict)
    runs: dict[int, int] = field(default_factory=dict)
    #: Of open maps and subworkflows: the status with which each will end, and whether its counted bodies have run.
    inside: dict[int, tuple[str, bool]] = field(default_factory=dict)
    status: str = "RUNNING"

    def __post_init__(self) -> None:
        self.runs = dict.fromkeys(range(len(self.specs)), 0)

    def run(self) -> None:
        """Run every node, and end the workflow."""
        for index, spec in enumerate(self.specs):
            if index not in self.states:
                self.states[index] = self._end_of(index, spec)
        self.status = FAILED if FAILED in self.states.values() else COMPLETED

    def copy_from(
        self, ended: Mapping[int, str], inside: Mapping[int, tuple[str, bool]], runs: Mapping[int, int]
    ) -> None:
        """Copy the state of a real workflow."""
        self.states = dict(ended)
        self.inside = dict(inside)
        self.runs = dict(runs)

    def cancel(self) -> None:
        """Cancel the workflow while no body runs."""
        self.states = {index: self.states.get(index, SKIPPED) for index in range(len(self.specs))}
        self.inside = {}
        self.status = "CANCELLED"

    def retry(self, *, has_failed_within: bool = False) -> bool:
        """Retry: keep the nodes that have completed or that their condition has skipped."""
        kept = {index: state for index, state in self.states.items() if state in (COMPLETED, SKIPPED_BY_CONDITION)}
        has_work = has_failed_within or len(kept) < len(self.states)
        if self.status not in (FAILED, "CANCELLED", "PAUSED") or not has_work:
            return False
        self.states = kept
        self.status = "RUNNING"
        return True

    def _end_of(self, index: int, spec: Spec) -> str:
        if not should_run(spec, [self.states[source] for source in spec.waits_for]):
            return SKIPPED
        if spec.condition is False:
            return SKIPPED_BY_CONDITION
        if index in self.inside:
            end, has_run = self.inside.pop(index)
            self.runs[index] += not has_run
            return end
        if spec.kind != "task" and self.runs[index] > spec.fails:
            return COMPLETED
        self.runs[index] += 1
        return FAILED if self.runs[index] <= spec.fails else COMPLETED


def should_run(spec: Spec, sources: Sequence[str]) -> bool:
    """Return whether a node runs after its dependencies have ended with these statuses."""
    if spec.join == "any":
        return COMPLETED in sources
    if spec.join == "quorum":
        return sources.count(COMPLETED) >= (spec.min_success or 0)
    return spec.allows or not {FAILED, SKIPPED} & set(sources)
