"""Filters of the task list that never ask the table which values there are."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..compat import DEFAULT_TASK_QUEUE_NAME, task_backends
from ..models import Queue
from .base import queue_database


class StateFilter(admin.SimpleListFilter):
    """By the states that asynq has, which tell of a pending task why it waits."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the states."""
        return [
            ("scheduled", _("scheduled")),
            ("retrying", _("retrying")),
            ("due", _("due")),
            ("active", _("active")),
            ("archived", _("archived")),
            ("completed", _("completed")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the tasks in that state."""
        known = {state for state, _ in self.lookups(request, None)}
        return getattr(queryset, self.value() or "all")() if self.value() in known else queryset


class QueueFilter(admin.SimpleListFilter):
    """By queue: those that the settings and the queues' own rows name."""

    title = _("queue")
    parameter_name = "queue_name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the queues that are known, and the one that was asked for."""
        configured = {name for alias in task_backends for name in task_backends[alias].queues}
        rows = Queue.objects.using(queue_database()).values_list("name", flat=True)
        asked = request.GET.getlist(self.parameter_name)
        return [(name, name) for name in sorted({DEFAULT_TASK_QUEUE_NAME, *configured, *rows, *asked})]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the tasks of that queue."""
        return queryset.filter(queue_name=self.value()) if self.value() else queryset


class PriorityFilter(admin.SimpleListFilter):
    """By priority, as far as it matters to whoever looks."""

    title = _("priority")
    parameter_name = "priority"
    _RANGES = {"high": {"priority__gt": 0}, "normal": {"priority": 0}, "low": {"priority__lt": 0}}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the three ranges."""
        return [("high", _("above 0")), ("normal", _("0")), ("low", _("below 0"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the tasks in that range."""
        return queryset.filter(**self._RANGES.get(self.value() or "", {}))
