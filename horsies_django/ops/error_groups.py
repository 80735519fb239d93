"""An error group: its row, its last failure, and how many tasks are in it now."""

from __future__ import annotations

from typing import Any

from django.db.models import Count as CountRows
from django.db.models import Q

from ..core.status import TaskStatus
from ..db.now import Now
from ..models import ErrorGroup, Task, TaskAttempt
from ..models.error_group import is_fingerprint
from ..models.filters import IS_RETRYING, in_error_group
from .metrics.counts import MAX_COUNTED, Count, bounded
from .payload_view.contents import PARTS
from .payload_view.excerpt import with_short_arguments


def find_group(database: str, fingerprint: str) -> Any:
    """Return a group; None if nothing has failed with this fingerprint.

    It has the database's time as ``read_at``. Until the reaper has counted the first failure, it is an unsaved
    instance without times.
    """
    if not is_fingerprint(fingerprint):
        return None
    group: Any = ErrorGroup.objects.using(database).annotate(read_at=Now()).filter(pk=fingerprint).first()
    if group is not None or (attempt := _attempt_of_newest_task(database, fingerprint)) is None:
        return group
    columns = {name: getattr(attempt, name) for name in ("exception_class", "error_code", "location")}
    group = ErrorGroup(fingerprint=fingerprint, last_attempt_id=attempt.pk, **columns)
    group._state.db, group.read_at = database, attempt.read_at
    return group


def last_failure(group: ErrorGroup) -> tuple[TaskAttempt, Any] | None:
    """Return the newest attempt of a group, and its task with the arguments that a list shows.

    If that task has been deleted, they are those of the newest task in the group; None if there is none.
    """
    database = str(group._state.db)
    attempts = TaskAttempt.objects.using(database).filter(pk=group.last_attempt_id, fingerprint=group.pk)
    attempt = attempts.first() or _attempt_of_newest_task(database, group.pk)
    if attempt is None:
        return None
    task = with_short_arguments(Task.objects.using(database).filter(pk=attempt.task_id).defer(*PARTS)).first()
    return None if task is None else (attempt, task)


def task_counts(database: str, fingerprint: str) -> dict[str, Count]:
    """Count a group's tasks by state: failed, retrying, and those whose retry is due or runs. Takes one statement.

    It counts the newest ``MAX_COUNTED`` tasks; if there are more, the numbers are lower bounds.
    """
    rows = Task.objects.using(database).filter(in_error_group(fingerprint)).order_by("-pk")
    is_retrying = Q(IS_RETRYING, status=TaskStatus.PENDING)
    counts = rows[: MAX_COUNTED + 1].aggregate(
        every=CountRows("pk"),
        failed=CountRows("pk", filter=Q(status=TaskStatus.FAILED)),
        retrying=CountRows("pk", filter=is_retrying),
    )
    numbers = {
        "failed": counts["failed"],
        "retrying": counts["retrying"],
        "again": counts["every"] - counts["failed"] - counts["retrying"],
    }
    return {state: bounded(number, counts["every"]) for state, number in numbers.items()}


def _attempt_of_newest_task(database: str, fingerprint: str) -> Any:
    """Return the latest attempt with this fingerprint of the newest task in the group; None if there is none."""
    tasks = Task.objects.using(database).filter(fingerprint=fingerprint).order_by("-pk")
    attempts = TaskAttempt.objects.using(database).filter(task__in=list(tasks.values_list("pk", flat=True)[:1]))
    return attempts.filter(fingerprint=fingerprint).annotate(read_at=Now()).order_by("-attempt").first()
