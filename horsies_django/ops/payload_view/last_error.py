"""The latest error of each task of a list: code, exception class and the beginning of the message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Final
from uuid import UUID

from django.db.models import Q
from django.db.models.functions import Left

from ...core.results import OperationalCode
from ...models import Task, TaskAttempt

#: Maximum number of characters of a message that are read.
MAX_MESSAGE: Final = 240


@dataclass(frozen=True, slots=True)
class LastError:
    """An error: its code, the class of its exception and the beginning of its message, each possibly empty."""

    code: str
    exception_class: str = ""
    message: str = ""

    @property
    def label(self) -> str:
        """The exception class without its module; the code before it, unless that says only that it was unhandled."""
        kind = self.exception_class.rpartition(".")[2]
        if kind and self.code == OperationalCode.UNHANDLED_EXCEPTION:
            return kind
        return " ".join(filter(None, (self.code, kind)))


def last_errors(tasks: Iterable[Task], database: str) -> dict[UUID, LastError]:
    """Return the errors of failed tasks and of tasks that wait for a retry, by id.

    One statement reads the attempts in which they failed, and no traceback. An error without an attempt, such as a
    cancellation, has only a code.
    """
    with_error = [task for task in tasks if task.error_code]
    found = {task.pk: LastError(task.error_code or "") for task in with_error}
    if attempts := [Q(task=task.pk, attempt=task.attempt) for task in with_error if task.attempt]:
        rows: Any = TaskAttempt.objects.using(database).filter(reduce(or_, attempts)).exclude(error_code="")
        columns = rows.values_list("task_id", "error_code", "exception_class", Left("error_message", MAX_MESSAGE))
        codes = {task.pk: task.error_code for task in with_error}
        # The task may have failed again since, or been cancelled.
        found |= {key: LastError(code, *texts) for key, code, *texts in columns if code == codes[key]}
    return found
