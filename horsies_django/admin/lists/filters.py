"""Filters of the task list. None asks the table which values there are; each says on which ground its rows are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...core.compat import DEFAULT_TASK_QUEUE_NAME, task_backends
from ...core.registry import registry
from ...core.results import ContractCode, OperationalCode, OutcomeCode
from ...core.status import TaskStatus
from ...db.expressions import NowPlus
from ...models import Queue, Worker
from ...models.claim.query import not_past_deadline
from ...models.operator_actions import ENGINE_TASK_PREFIX
from ...ops.keyset import scopes
from ...ops.keyset.scan import Bounds
from ...ops.keyset.scopes import ScanScope
from ..base import queue_database
from .registered_tasks import error_codes, task_names
from .search import is_id

#: Choices that a filter offers at most; there is the search for others.
MAX_CHOICES: Final = 30

#: Seconds after which a task that could have begun has waited long.
LATE_AFTER: Final = 60


class ChoiceFilter(admin.SimpleListFilter):
    """One choice of several, by one parameter. What is none of them finds nothing.

    It must not find everything, for something may be done to all that is found.
    """

    #: What is chosen if nothing is.
    default: str | None = None

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield the choices: all, unless one stands for nothing chosen."""
        if self.default is None:
            yield self._choice(changelist, None, _("All"))
        for value, title in self.lookup_choices:
            yield self._choice(changelist, None if value == self.default else value, title)

    def _choice(self, changelist: Any, value: Any, title: Any) -> dict[str, Any]:
        query = changelist.get_query_string({self.parameter_name: value})
        return {"selected": self.selected == (value or self.default), "query_string": query, "display": title}

    @property
    def selected(self) -> str | None:
        """What was chosen, if it is one of the choices."""
        known = {value for value, _ in self.lookup_choices}
        return value if (value := self.value()) in known else self.default

    def has_output(self) -> bool:
        """Django leaves out one that has no choices, whatever was asked for."""
        return super().has_output() or self.is_unknown

    @property
    def is_unknown(self) -> bool:
        """Whether something was asked for that is none of the choices."""
        return bool(self.value()) and self.value() not in {value for value, _ in self.lookup_choices}

    @property
    def description(self) -> str | None:
        """What was chosen, in words; None if nothing was."""
        if self.is_unknown:
            return f"{self.title}: {self.value()!r}"
        return next((f"{self.title}: {title}" for value, title in self.lookup_choices if value == self.selected), None)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep what was chosen."""
        if self.is_unknown:
            return queryset.none()
        return queryset.filter(self.condition(self.selected)) if self.selected is not None else queryset

    def condition(self, chosen: str) -> Q:
        """Return what is true of the rows that were chosen."""
        return Q(**{str(self.parameter_name): chosen})

    @property
    def scope(self) -> ScanScope:
        """Where the rows are."""
        return scopes.TABLE

    @property
    def bounds(self) -> Bounds:
        """Between which ids the rows are."""
        return Bounds()

    def narrow(self, scope: ScanScope) -> ScanScope:
        """Return the part of a ground where the rows are."""
        return scope


class FoldedFilter(ChoiceFilter):
    """One with so many choices that it is folded until something is chosen."""

    template = "admin/horsies_django/folded_filter.html"

    def choices_with_selected(self, request: HttpRequest, values: set[str]) -> list[tuple[str, str]]:
        """Return the choices, with one that was asked for and is not among them."""
        asked = {value.replace("\0", "") for value in request.GET.getlist(str(self.parameter_name))[-1:]}
        return [(value, value) for value in sorted((values | asked) - {""})]


class StatusFilter(ChoiceFilter):
    """By status."""

    title = _("status")
    parameter_name = "status__exact"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the statuses."""
        return list(TaskStatus.choices)

    @property
    def scope(self) -> ScanScope:
        """Failed ones and those that live have an index."""
        return scopes.of_status(self.selected) if self.selected else scopes.TABLE


class StateFilter(ChoiceFilter):
    """By the states that asynq has, which tell of a pending task why it waits."""

    title = _("state")
    parameter_name = "state"
    _SCOPES: Final = {
        "scheduled": scopes.DEFERRED,
        "aggregating": scopes.DEFERRED,
        "retrying": scopes.DEFERRED,
        "due": scopes.DUE,
        "active": scopes.HELD,
        "archived": scopes.of_status(TaskStatus.FAILED),
        "completed": scopes.TABLE,
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the states."""
        return [
            ("scheduled", _("scheduled")),
            ("aggregating", _("aggregating")),
            ("retrying", _("retrying")),
            ("due", _("due")),
            ("active", _("active")),
            ("archived", _("archived")),
            ("completed", _("completed")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the tasks in that state."""
        if self.is_unknown:
            return queryset.none()
        rows: QuerySet[Any] = getattr(queryset, self.selected or "all")()
        return rows

    @property
    def scope(self) -> ScanScope:
        """Where tasks in that state are."""
        return self._SCOPES.get(self.selected or "", scopes.TABLE)


class KindFilter(ChoiceFilter):
    """The project's own tasks, or the steps of workflows that the engine has run, which are many and tell little."""

    title = _("kind")
    parameter_name = "kind"
    default = "tasks"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the two, and both."""
        return [("tasks", _("tasks")), ("steps", _("inner steps of workflows")), ("all", _("both"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Who gives an id means that one, whatever it is."""
        is_given = self.value() is None and is_id(request.GET.get("q", ""))
        return queryset if is_given else super().queryset(request, queryset)

    def condition(self, chosen: str) -> Q:
        """The engine's are known by where they stand."""
        is_step = Q(task_name__startswith=ENGINE_TASK_PREFIX)
        return {"tasks": ~is_step, "steps": is_step}.get(chosen, Q())


class QueueFilter(FoldedFilter):
    """By queue: those that the settings and the queues' own rows name."""

    title = _("queue")
    parameter_name = "queue_name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the queues that are known, and the one that was asked for."""
        configured = {name for alias in task_backends for name in task_backends[alias].queues}
        rows = Queue.objects.using(queue_database()).order_by("name").values_list("name", flat=True)
        return self.choices_with_selected(request, {DEFAULT_TASK_QUEUE_NAME, *configured, *rows[:MAX_CHOICES]})

    def narrow(self, scope: ScanScope) -> ScanScope:
        """What is in line is so queue by queue: a queue that nobody serves is found behind any number of others."""
        return scope.for_queue(self.selected) if self.selected else scope


class TaskFilter(FoldedFilter):
    """By task: those of the project, if they are few."""

    title = _("task")
    parameter_name = "task_name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the tasks in the modules that are loaded, and the one that was asked for."""
        names = task_names()
        return self.choices_with_selected(request, names if len(names) <= MAX_CHOICES else set())

    def condition(self, chosen: str) -> Q:
        """Return what is true of its rows; those from before it was renamed have an old name."""
        return Q(task_name__in=registry.names_of(chosen))


class PriorityFilter(ChoiceFilter):
    """By priority, as far as it matters to whoever looks."""

    title = _("priority")
    parameter_name = "priority"
    _RANGES: Final = {"high": Q(priority__gt=0), "normal": Q(priority=0), "low": Q(priority__lt=0)}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the three ranges."""
        return [("high", _("above 0")), ("normal", _("0")), ("low", _("below 0"))]

    def condition(self, chosen: str) -> Q:
        """Return the range."""
        return self._RANGES[chosen]


class WorkerFilter(FoldedFilter):
    """By the worker that has or had it: those that live."""

    title = _("worker")
    parameter_name = "worker"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the workers that are there, and the one that was asked for."""
        rows = Worker.objects.using(queue_database()).order_by("-last_beat_at").values_list("pk", flat=True)
        return self.choices_with_selected(request, set(rows[:MAX_CHOICES]))

    def condition(self, chosen: str) -> Q:
        """The column of who has claimed it."""
        return Q(claimed_by_worker_id=chosen)


class ErrorFilter(FoldedFilter):
    """By error code: the library's, and those that the project's tasks map exceptions to."""

    title = _("error code")
    parameter_name = "error_code"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the codes that are known, and the one that was asked for."""
        ours = {code.value for family in (OperationalCode, ContractCode, OutcomeCode) for code in family}
        return self.choices_with_selected(request, ours | set(sorted(error_codes())[:MAX_CHOICES]))

    @property
    def scope(self) -> ScanScope:
        """What has a code has an index."""
        return scopes.WITH_ERROR if self.selected else scopes.TABLE


class TroubleFilter(ChoiceFilter):
    """Tasks that need a look: tried more than once, or still waiting though they could have begun."""

    title = _("trouble")
    parameter_name = "trouble"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return what there is."""
        return [
            ("retried", _("retried")),
            ("late", _("due for more than a minute")),
            ("overdue", _("overdue (past their deadline)")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep what is in this trouble; what is overdue is said in one place."""
        if self.selected == "overdue" and not self.is_unknown:
            rows: QuerySet[Any] = queryset.overdue()  # type: ignore[attr-defined]  # tasks have it
            return rows
        return super().queryset(request, queryset)

    def condition(self, chosen: str) -> Q:
        """Return what is true of the rows."""
        if chosen == "retried":
            return Q(attempt__gt=1) | Q(retry_count__gt=0)
        return Q(not_past_deadline(), status=TaskStatus.PENDING, enqueued_at__lt=NowPlus(-LATE_AFTER))

    @property
    def scope(self) -> ScanScope:
        """What has not begun is pending."""
        return {"late": scopes.DUE, "overdue": scopes.OVERDUE}.get(self.selected or "", scopes.TABLE)
