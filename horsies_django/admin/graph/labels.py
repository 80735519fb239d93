"""The words and marks of a picture: states, kinds and times, short enough for a box."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from unicodedata import east_asian_width

from django.utils.translation import gettext_lazy

from ...core.workflow_status import NodeKind, WorkflowTaskStatus
from ..formatting import format_number

#: The mark before the word of a state, as in the lists: a state is never told by colour alone.
MARKS: Final[Mapping[str, str]] = {
    "PENDING": "○",
    "READY": "◌",
    "ENQUEUED": "◔",
    "RUNNING": "◑",
    "COMPLETED": "●",
    "FAILED": "✕",
    "SKIPPED": "⊘",
}

#: The order in which counts of states are told, and the states of nodes.
STATES: Final = ("COMPLETED", "FAILED", "SKIPPED", "RUNNING", "ENQUEUED", "READY", "PENDING")

#: What a kind is called in a box; a plain task needs no word.
KINDS: Final[Mapping[str, Any]] = {
    NodeKind.MAP: gettext_lazy("map"),
    NodeKind.SUBWORKFLOW: gettext_lazy("subworkflow"),
    NodeKind.SLEEP: gettext_lazy("sleep"),
    NodeKind.EVENT: gettext_lazy("event"),
}


def status_label(status: str) -> str:
    """Return the name of a state, as it is if it is none."""
    return str(WorkflowTaskStatus(status).label) if status in WorkflowTaskStatus.values else status


def describe_counts(counts: Mapping[str, int]) -> str:
    """Return how many are in each state, in words."""
    return ", ".join(f"{format_number(counts[state])} {status_label(state)}" for state in STATES if counts.get(state))


def mark_counts(counts: Mapping[str, int]) -> str:
    """Return how many are in each state, by marks; how many failed in words, first.

    The mark of a failure between two numbers would read as a multiplication: "● 3  ✕ 2".
    """
    failed = [f"{format_number(counts['FAILED'])} {status_label('FAILED')}"] if counts.get("FAILED") else []
    others = [
        f"{MARKS[state]} {format_number(counts[state])}" for state in STATES if state != "FAILED" and counts.get(state)
    ]
    return "  ".join([*failed, *others])


def truncate(text: str, cells: int) -> str:
    """Return what of ``text`` fits into so many cells: a wide letter takes two."""
    used = 0
    for place, letter in enumerate(text):
        used += 2 if east_asian_width(letter) in "WF" else 1
        if used > cells:
            return text[: max(0, place - 1)] + "…"
    return text
