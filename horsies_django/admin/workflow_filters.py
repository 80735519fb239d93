"""Filters of the list of workflows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..workflows.registry import registry


class TreeFilter(admin.SimpleListFilter):
    """Workflows that somebody started, or their subworkflows too."""

    title = _("level")
    parameter_name = "level"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return what there is besides the first."""
        return [("sub", _("subworkflows")), ("all", _("all"))]

    def choices(self, changelist: Any) -> Any:
        """Name the first one for what it is: it does not show all."""
        first, *rest = super().choices(changelist)
        yield {**first, "display": _("started by a call")}
        yield from rest

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep those; nothing for what is no level."""
        if self.value() not in (None, "", "sub", "all"):
            return queryset.none()
        if self.value() == "all":
            return queryset
        return queryset.filter(parent__isnull=self.value() != "sub")


class NameFilter(admin.SimpleListFilter):
    """By name: of the definitions that this process has imported, and the one that was asked for."""

    title = _("name")
    parameter_name = "name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the names; the search finds those of other workflows."""
        names = {definition._meta.name for definition in registry.definitions.values()}
        return [(name, name) for name in sorted({*names, *request.GET.getlist(self.parameter_name)})]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep those with that name."""
        if "\0" in (name := self.value() or ""):
            return queryset.none()
        return queryset.filter(name=name) if name else queryset


class SentFilter(admin.SimpleListFilter):
    """By when they were sent. Goes by their ids, which grow with time, for by those the list is sorted."""

    title = _("sent")
    parameter_name = "sent"
    _HOURS: Final = {"hour": 1, "day": 24, "week": 7 * 24, "month": 30 * 24}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the windows."""
        return [
            ("hour", _("within an hour")),
            ("day", _("within a day")),
            ("week", _("within a week")),
            ("month", _("within 30 days")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep those that were sent since; nothing for what is no window."""
        if not self.value():
            return queryset
        if (hours := self._HOURS.get(self.value() or "")) is None:
            return queryset.none()
        return queryset.filter(pk__gte=first_id(hours))


def first_id(hours: float) -> UUID:
    """Return the least id of what was sent in the last ``hours``: UUIDv7 begins with 48 bits of milliseconds."""
    since = timezone.now() - timedelta(hours=hours)
    return UUID(int=int(since.timestamp() * 1000) << 80)
