"""A batch in one sentence: how many tasks it has, and in which states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from django.utils.translation import gettext_lazy, ngettext

from ...core.numbers import format_number
from ...core.workflow_status import WorkflowTaskStatus

#: The states of a batch's tasks in words, in the order of the sentence.
_WORDS: Final = {
    WorkflowTaskStatus.COMPLETED: gettext_lazy("%s completed"),
    WorkflowTaskStatus.FAILED: gettext_lazy("%s failed"),
    WorkflowTaskStatus.SKIPPED: gettext_lazy("%s cancelled"),
    WorkflowTaskStatus.RUNNING: gettext_lazy("%s running"),
    WorkflowTaskStatus.ENQUEUED: gettext_lazy("%s enqueued"),
    WorkflowTaskStatus.READY: gettext_lazy("%s ready"),
    WorkflowTaskStatus.PENDING: gettext_lazy("%s pending"),
}


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A batch on its page.

    Attributes:
        title: Says that it is a batch, and of how many tasks.
        parts: Each state that tasks of it are in, and how many are, in words.
    """

    title: str
    parts: list[tuple[str, str]]


def batch_summary(counts: Mapping[str, int]) -> BatchSummary:
    """Return the summary of a batch from the number of its tasks by state. Its callbacks are not counted."""
    total = sum(counts.values())
    title = ngettext("Batch of %s task", "Batch of %s tasks", total) % format_number(total)
    return BatchSummary(
        title,
        [
            (status.value, str(words) % format_number(counts[status]))
            for status, words in _WORDS.items()
            if counts.get(status)
        ],
    )
