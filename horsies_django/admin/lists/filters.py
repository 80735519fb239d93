"""Filters of the task list. Filters don't query the table for their choices; each gives the scope of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, cast

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...core.status import TaskStatus
from ...db.expressions import NowPlus
from ...models import Worker
from ...models.claim.query import not_past_deadline
from ...models.filters import due_before
from ...models.operator_actions import ENGINE_TASK_PREFIX
from ...models.transitions import TaskQuerySet
from ...ops.keyset import scopes
from ...ops.keyset.scan import KeyRange
from ...ops.keyset.scopes import ScanScope
from ..base import queue_database
from .ids import looks_like_id

#: Maximum number of choices; the search finds other values.
MAX_CHOICES: Final = 30

#: Seconds after which a due task counts as waiting long.
LATE_AFTER: Final = 60


class ChoiceFilter(admin.SimpleListFilter):
    """A filter with one choice by one parameter. An unknown value matches no row.

    It must not match all rows, since an action may be applied to all matches.
    """

    template = "admin/horsies_django/choice_filter.html"
    #: The default choice.
    default: str | None = None

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield the choices; without a default choice, *All* comes first."""
        if self.default is None:
            yield self._choice(changelist, None, _("All"))
        for value, title in self.lookup_choices:
            yield self._choice(changelist, None if value == self.default else value, title)

    def _choice(self, changelist: Any, value: Any, title: Any) -> dict[str, Any]:
        query = changelist.get_query_string({self.parameter_name: value})
        return {"selected": self.selected == (value or self.default), "query_string": query, "display": title}

    @property
    def selected(self) -> str | None:
        """The selected choice; None for an unknown one."""
        known = {value for value, _ in self.lookup_choices}
        return value if (value := self.value()) in known else self.default

    def has_output(self) -> bool:
        """Return True; Django would hide a filter without choices, even if it is used."""
        return super().has_output() or self.is_unknown

    @property
    def is_unknown(self) -> bool:
        """Whether the parameter has an unknown value."""
        return bool(self.value()) and self.value() not in {value for value, _ in self.lookup_choices}

    @property
    def description(self) -> str | None:
        """The selection in words; None if nothing is selected."""
        if self.is_unknown:
            return f"{self.title}: {self.value()!r}"
        return next((f"{self.title}: {title}" for value, title in self.lookup_choices if value == self.selected), None)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Filter by the selection."""
        if self.is_unknown:
            return queryset.none()
        return queryset.filter(self.condition(self.selected)) if self.selected is not None else queryset

    def condition(self, chosen: str) -> Q:
        """Return the condition for the selected choice."""
        return Q(**{str(self.parameter_name): chosen})

    @property
    def scope(self) -> ScanScope:
        """The scope of the matching rows."""
        return scopes.TABLE

    @property
    def bounds(self) -> KeyRange:
        """The bounds of the ids of the matching rows."""
        return KeyRange()

    def narrow(self, scope: ScanScope) -> ScanScope:
        """Return the part of a scope that has the matching rows."""
        return scope


class FoldedFilter(ChoiceFilter):
    """A filter that is collapsed until something is selected, because it has many choices."""

    template = "admin/horsies_django/folded_filter.html"

    def choices_with_selected(self, request: HttpRequest, values: set[str]) -> list[tuple[str, str]]:
        """Return the choices, plus the requested one if it is missing."""
        asked = {value.replace("\0", "") for value in request.GET.getlist(str(self.parameter_name))[-1:]}
        return [(value, value) for value in sorted((values | asked) - {""})]


#: The states that pending and held tasks are in, besides the statuses: label, scope, and the tasks among some rows.
_STATES: Final[Mapping[str, tuple[Any, ScanScope, Callable[[TaskQuerySet], QuerySet[Any]]]]] = {
    "due": (_("Due"), scopes.DUE, lambda rows: rows.due().filter(blocked=False)),
    "blocked": (_("Blocked"), scopes.BLOCKED, lambda rows: rows.blocked().filter(not_past_deadline())),
    "active": (_("Active"), scopes.HELD, TaskQuerySet.active),
    "scheduled": (_("Scheduled"), scopes.DEFERRED, TaskQuerySet.scheduled),
    "aggregating": (_("Aggregating"), scopes.DEFERRED, TaskQuerySet.aggregating),
    "retrying": (_("Retrying"), scopes.DEFERRED, TaskQuerySet.retrying),
}

#: Other names of states.
STATE_ALIASES: Final = {"archived": TaskStatus.FAILED.lower()}

#: All states, by their parameter.
STATES: Final = (*_STATES, *(status.lower() for status in TaskStatus.values))


def in_state(rows: QuerySet[Any], state: str) -> QuerySet[Any]:
    """Return the tasks in a state."""
    if state not in _STATES:
        return rows.filter(status=state.upper())
    return _STATES[state][2](cast("TaskQuerySet", rows))


def scope_of_state(state: str) -> ScanScope:
    """Return the scope of the tasks in a state; failed and live tasks have indexes."""
    return _STATES[state][1] if state in _STATES else scopes.of_status(state.upper())


class StateFilter(ChoiceFilter):
    """Filters by state: the statuses, and for pending tasks why they wait.

    Old addresses keep working: those with ``status__exact``, which takes a status, and ``state=archived``.
    """

    title = _("state")
    parameter_name = "state"
    parameter_names: ClassVar = ("state", "status__exact")
    #: The order of the choices: pending tasks, those that workers hold, the others.
    _FIRST: Final = ("pending", "due", "blocked", "scheduled", "aggregating", "retrying", "active")

    def __init__(self, request: HttpRequest, params: dict[str, list[str]], model: Any, model_admin: Any) -> None:
        given = params.pop("status__exact", [])
        self.status = given[-1] if given else ""
        super().__init__(request, params, model, model_admin)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the states."""
        labels = {state: label for state, (label, *_rows) in _STATES.items()}
        labels |= {status.lower(): label for status, label in TaskStatus.choices}
        return [(state, labels.pop(state)) for state in self._FIRST] + list(labels.items())

    def expected_parameters(self) -> list[str | None]:
        """Return the names of its parameters."""
        return list(self.parameter_names)

    def value(self) -> Any:
        """Return the requested state: that of ``state``, else of ``status__exact``."""
        value = super().value() or self.status.lower()
        return STATE_ALIASES.get(value, value) or None

    def _choice(self, changelist: Any, value: Any, title: Any) -> dict[str, Any]:
        query = changelist.get_query_string({"state": value, "status__exact": None})
        is_selected = self.selected == value and not self.is_unknown
        return {"selected": is_selected, "query_string": query, "display": title}

    @property
    def is_unknown(self) -> bool:
        """Whether a parameter has an unknown value."""
        return super().is_unknown or (bool(self.status) and self.status not in TaskStatus.values)

    @property
    def description(self) -> str | None:
        """The selection in words; None if nothing is selected."""
        if self.is_unknown and self.status:
            return f"{self.title}: {self.status!r}"
        return super().description

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Filter by the selected state."""
        if self.is_unknown:
            return queryset.none()
        rows = queryset.filter(status=self.status) if self.status else queryset
        return rows if self.selected is None else in_state(rows, self.selected)

    @property
    def scope(self) -> ScanScope:
        """The scope of tasks in the state; failed and live tasks have indexes."""
        return scope_of_state(self.selected) if self.selected else scopes.TABLE


class KindFilter(ChoiceFilter):
    """Hides the workflow engine's internal tasks, of which there are many, unless they are asked for."""

    title = _("show")
    parameter_name = "kind"
    default = "tasks"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the choices: project tasks, engine tasks, all."""
        return [("tasks", _("tasks")), ("steps", _("internal steps")), ("all", _("both"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Skip the filter if the search is an id or a part of one."""
        is_given = self.value() is None and looks_like_id(request.GET.get("q", ""))
        return queryset if is_given else super().queryset(request, queryset)

    def condition(self, chosen: str) -> Q:
        """Match the engine's tasks by their name's prefix."""
        is_step = Q(task_name__startswith=ENGINE_TASK_PREFIX)
        return {"tasks": ~is_step, "steps": is_step}.get(chosen, Q())


class WorkerFilter(FoldedFilter):
    """Filters by the worker that holds or held the task; offers live workers."""

    title = _("worker")
    parameter_name = "worker"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the workers in the table and the requested one."""
        rows = Worker.objects.using(queue_database()).order_by("-last_beat_at").values_list("pk", flat=True)
        return self.choices_with_selected(request, set(rows[:MAX_CHOICES]))

    def condition(self, chosen: str) -> Q:
        """Match the worker that claimed it last."""
        return Q(claimed_by_worker_id=chosen)


class ProblemFilter(ChoiceFilter):
    """Finds tasks that need attention: retried, overdue, or due for a long time."""

    title = _("problems")
    parameter_name = "trouble"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the choices."""
        return [
            ("retried", _("retried")),
            ("late", _("due for more than a minute")),
            ("overdue", _("overdue (past their deadline)")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Filter by the selected problem; ``overdue()`` defines the overdue ones."""
        if self.selected == "overdue" and not self.is_unknown:
            return cast("TaskQuerySet", queryset).overdue()
        return super().queryset(request, queryset)

    def condition(self, chosen: str) -> Q:
        """Return the condition for the selected problem."""
        if chosen == "retried":
            return Q(attempt__gt=1) | Q(retry_count__gt=0)
        return Q(not_past_deadline(), due_before(NowPlus(-LATE_AFTER)), status=TaskStatus.PENDING)

    @property
    def scope(self) -> ScanScope:
        """Overdue and waiting tasks are pending."""
        return {"late": scopes.DUE, "overdue": scopes.OVERDUE}.get(self.selected or "", scopes.TABLE)
