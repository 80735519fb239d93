"""Filters by queue, task and error code. They know every name of the roll-ups, which may be hundreds.

The most frequent ones are links, each with its attempts of the last 24 hours. A text box with completion takes any
name.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from django.db.models import Q
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext_lazy as _

from ...core.compat import DEFAULT_TASK_QUEUE_NAME, task_backends
from ...core.registry import registry
from ...core.results import ContractCode, OperationalCode, OutcomeCode
from ...enqueue.task import HorsiesTask
from ...models import Queue
from ...models.operator_actions import ENGINE_TASK_PREFIX
from ...ops.keyset import scopes
from ...ops.keyset.criteria import Criteria
from ...ops.task_criteria import in_queue, of_task
from ..base import queue_database
from .choice_filters import FoldedFilter, form_of

if TYPE_CHECKING:
    from ...ops.metrics.tasks import KnownNames

#: Maximum names that are links, and that the text box completes.
MAX_LINKS: Final = 10
MAX_NAMES: Final = 500


def names_for(request: HttpRequest) -> KnownNames:
    """Return the names of the roll-ups, read once in each request."""
    from ...ops.metrics.tasks import KnownNames, known_names

    names = getattr(request, "_horsies_names", None)
    if not isinstance(names, KnownNames):
        database = queue_database()
        names = known_names(database) if database else KnownNames()
        request._horsies_names = names  # type: ignore[attr-defined]  # kept for the other filters
    return names


class NameFilter(FoldedFilter, ABC):
    """A filter by one of many names, or by any other name that is typed."""

    template = "admin/horsies_django/name_filter.html"

    @abstractmethod
    def names(self, request: HttpRequest) -> tuple[Counter[str], Iterable[str]]:
        """Return the names of the roll-ups with their attempts, and the other known names."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the known names, the most frequent first, and the requested one."""
        counts, others = self.names(request)
        self.attempts = counts
        every = self.choices_with_selected(request, {*counts, *others})
        return sorted(every, key=lambda choice: (-counts[choice[0]], choice))

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield *All*, the most frequent names with the selected one, and what the form of the others needs."""
        yield self._choice(changelist, None, _("All"))
        names = [name for name, _title in self.lookup_choices]
        links = names[:MAX_LINKS] if len(names) > MAX_LINKS + 1 else names
        if self.selected and self.selected not in links:
            links = [self.selected, *links]
        for name in links:
            yield self._choice(changelist, name, name) | {
                "count": self.attempts[name],
                "breakable": _breakable(name),
            }
        parameter = str(self.parameter_name)
        yield form_of(
            changelist,
            parameter,
            name=parameter,
            value=self.selected or "",
            names=sorted(names[:MAX_NAMES]),
            left_out=max(0, len(names) - MAX_NAMES),
        )


class QueueFilter(NameFilter):
    """Filters by queue: those of the settings, those with a row, and those in which tasks have run."""

    title = _("queue")
    parameter_name = "queue_name"

    def names(self, request: HttpRequest) -> tuple[Counter[str], Iterable[str]]:
        """Return the known queues."""
        configured = {name for alias in task_backends for name in task_backends[alias].queues}
        rows = Queue.objects.using(queue_database()).order_by("name").values_list("name", flat=True)
        return names_for(request).queues, {DEFAULT_TASK_QUEUE_NAME, *configured, *rows[:MAX_NAMES]}

    def criteria_of(self, choice: str) -> Criteria:
        """Match the queue."""
        return in_queue(choice)


class TaskFilter(NameFilter):
    """Filters by task: the registered ones, and those that have run."""

    title = _("task")
    parameter_name = "task_name"

    def names(self, request: HttpRequest) -> tuple[Counter[str], Iterable[str]]:
        """Return the known tasks."""
        return names_for(request).tasks, task_names()

    def criteria_of(self, choice: str) -> Criteria:
        """Match the name, and the old names of a renamed task."""
        return of_task(choice)


class ErrorFilter(NameFilter):
    """Filters by error code: the library's, those that registered tasks map exceptions to, and those of attempts."""

    title = _("error code")
    parameter_name = "error_code"

    def names(self, request: HttpRequest) -> tuple[Counter[str], Iterable[str]]:
        """Return the known codes."""
        ours = {code.value for family in (OperationalCode, ContractCode, OutcomeCode) for code in family}
        return names_for(request).error_codes, ours | {
            code for task in _tasks() for code in task.exception_mapper.values()
        }

    def criteria_of(self, choice: str) -> Criteria:
        """Tasks with an error code have an index."""
        return Criteria(Q(error_code=choice), scopes.WITH_ERROR)


def _breakable(name: str) -> SafeString:
    """Return a name that may wrap after its dots and underscores."""
    return format_html_join(mark_safe("<wbr>"), "{}", ((part,) for part in re.split(r"(?<=[._])", name)))


def task_names() -> set[str]:
    """Return the names of the tasks registered at start-up, without the workflow engine's."""
    return {name for task in _tasks() if not (name := task.task_name).startswith(ENGINE_TASK_PREFIX)}


def _tasks() -> Iterator[HorsiesTask[..., Any]]:
    for name, task in list(registry.tasks.items()):
        if isinstance(task, HorsiesTask) and name not in registry.late:
            yield task
