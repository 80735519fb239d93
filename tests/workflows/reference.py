"""What the spec says becomes of a workflow, as plain Python: no rows, no workers, no order in time.

A node's end does not depend on when the others end, only on how: so one pass over the nodes, each after those that it
waits for, tells the end of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

COMPLETED, FAILED, SKIPPED = "COMPLETED", "FAILED", "SKIPPED"
#: SKIPPED by its own condition, which is no failure.
UNWANTED = "UNWANTED"


@dataclass(frozen=True)
class Spec:
    """A node: it fails for the first ``fails`` times that it runs; ``wish`` is what its condition says, if any.

    A map or a subworkflow keeps what has completed inside of it: after a cancel it may have nothing left to run.
    """

    waits_for: tuple[int, ...] = ()
    join: str = "all"
    min_success: int | None = None
    allows: bool = False
    fails: int = 0
    wish: bool | None = None
    kind: str = "task"


@dataclass
class Reference:
    """A workflow. ``runs`` counts how often the body of each node has run."""

    specs: Sequence[Spec]
    states: dict[int, str] = field(default_factory=dict)
    runs: dict[int, int] = field(default_factory=dict)
    #: How maps and subworkflows that have not ended are going to, and whether the bodies that count have run.
    inside: dict[int, tuple[str, bool]] = field(default_factory=dict)
    status: str = "RUNNING"

    def __post_init__(self) -> None:
        self.runs = dict.fromkeys(range(len(self.specs)), 0)

    def run(self) -> None:
        """Bring every node to its end, and with that the workflow."""
        for index, spec in enumerate(self.specs):
            if index not in self.states:
                self.states[index] = self._end_of(index, spec)
        self.status = FAILED if FAILED in self.states.values() else COMPLETED

    def see(self, ended: Mapping[int, str], inside: Mapping[int, tuple[str, bool]], runs: Mapping[int, int]) -> None:
        """Take over how far it has come."""
        self.states = dict(ended)
        self.inside = dict(inside)
        self.runs = dict(runs)

    def cancel(self) -> None:
        """Cancel the workflow; nothing runs at that time."""
        self.states = {index: self.states.get(index, SKIPPED) for index in range(len(self.specs))}
        self.inside = {}
        self.status = "CANCELLED"

    def retry(self, *, has_failed_within: bool = False) -> bool:
        """Retry: keep what has completed, and what its condition did not want."""
        kept = {index: state for index, state in self.states.items() if state in (COMPLETED, UNWANTED)}
        is_any = has_failed_within or len(kept) < len(self.states)
        if self.status not in (FAILED, "CANCELLED", "PAUSED") or not is_any:
            return False
        self.states = kept
        self.status = "RUNNING"
        return True

    def _end_of(self, index: int, spec: Spec) -> str:
        if not is_let_run(spec, [self.states[source] for source in spec.waits_for]):
            return SKIPPED
        if spec.wish is False:
            return UNWANTED
        if index in self.inside:
            end, has_run = self.inside.pop(index)
            self.runs[index] += not has_run
            return end
        if spec.kind != "task" and self.runs[index] > spec.fails:
            return COMPLETED
        self.runs[index] += 1
        return FAILED if self.runs[index] <= spec.fails else COMPLETED


def is_let_run(spec: Spec, sources: Sequence[str]) -> bool:
    """Whether a node runs after these ends."""
    if spec.join == "any":
        return COMPLETED in sources
    if spec.join == "quorum":
        return sources.count(COMPLETED) >= (spec.min_success or 0)
    return spec.allows or not {FAILED, SKIPPED} & set(sources)
