"""The attempts of a task, as the tests of faults compare them."""

from __future__ import annotations

from typing import Any

from horsies_django.models import TaskAttempt


def attempts_of(handle: Any) -> list[tuple[Any, ...]]:
    """Return the outcome and error code of each attempt, and whether a retry follows it."""
    attempts = TaskAttempt.objects.filter(task=handle.id).order_by("attempt")
    return list(attempts.values_list("outcome", "error_code", "will_retry"))
