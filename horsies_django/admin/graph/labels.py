"""Labels and marks of a graph: states, kinds and times, short enough for a box."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from unicodedata import east_asian_width

from django.utils.translation import gettext_lazy

from ...core.numbers import format_number
from ...core.workflow_status import NodeKind, WorkflowTaskStatus

#: The mark before a state's label, as in the lists, so that colour is never the only sign.
MARKS: Final[Mapping[str, str]] = {
    "PENDING": "○",
    "READY": "◌",
    "ENQUEUED": "◔",
    "RUNNING": "◑",
    "COMPLETED": "●",
    "FAILED": "✕",
    "SKIPPED": "⊘",
}

#: The order of states in counts, and all states of nodes.
STATES: Final = ("COMPLETED", "FAILED", "SKIPPED", "RUNNING", "ENQUEUED", "READY", "PENDING")

#: Labels of kinds; a plain task has none.
KINDS: Final[Mapping[str, Any]] = {
    NodeKind.MAP: gettext_lazy("map"),
    NodeKind.SUBWORKFLOW: gettext_lazy("subworkflow"),
    NodeKind.SLEEP: gettext_lazy("sleep"),
    NodeKind.EVENT: gettext_lazy("event"),
}


def status_label(status: str) -> str:
    """Return the label of a state; an unknown one is returned unchanged."""
    return str(WorkflowTaskStatus(status).label) if status in WorkflowTaskStatus.values else status


def describe_counts(counts: Mapping[str, int]) -> str:
    """Return the counts by state in words."""
    return ", ".join(f"{format_number(counts[state])} {status_label(state)}" for state in STATES if counts.get(state))


def mark_counts(counts: Mapping[str, int]) -> str:
    """Return the counts by state with marks; failures come first and in words.

    Between two numbers, the mark of a failure would look like a multiplication: "● 3  ✕ 2".
    """
    failed = [f"{format_number(counts['FAILED'])} {status_label('FAILED')}"] if counts.get("FAILED") else []
    others = [
        f"{MARKS[state]} {format_number(counts[state])}" for state in STATES if state != "FAILED" and counts.get(state)
    ]
    return "  ".join([*failed, *others])


def truncate(text: str, cells: int) -> str:
    """Truncate text to a number of cells; a wide character takes two."""
    used = 0
    for place, letter in enumerate(text):
        used += 2 if east_asian_width(letter) in "WF" else 1
        if used > cells:
            return text[: max(0, place - 1)] + "…"
    return text
