"""What the queue's admin pages have in common: their database, no unbounded count, nothing to edit."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.contrib.admin.widgets import url_params_from_lookup_dict
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property

from ..core.compat import task_backends
from ..enqueue.backend import HorsiesBackend
from ..ops.keyset.estimate import MAX_COUNTED

if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
    AnyModelAdmin = admin.ModelAdmin[Any]
    AnyStackedInline = admin.StackedInline[Any, Any]
else:  # generic in the type stubs only
    AnyPaginator, AnyModelAdmin, AnyStackedInline = Paginator, admin.ModelAdmin, admin.StackedInline


def first_backend() -> HorsiesBackend | None:
    """Return the first of the backends that are ours, if one is."""
    backends = (task_backends[alias] for alias in task_backends)
    return next((backend for backend in backends if isinstance(backend, HorsiesBackend)), None)


def backends_on(database: str) -> list[str]:
    """Return the aliases of our backends that have their tables in a database."""
    backends = ((alias, task_backends[alias]) for alias in task_backends)
    ours = ((alias, backend) for alias, backend in backends if isinstance(backend, HorsiesBackend))
    return [alias for alias, backend in ours if backend.parsed.options.database == database]


def queue_database() -> str | None:
    """Return the alias of the queue's database; None leaves it to the routers."""
    backend = first_backend()
    return backend.parsed.options.database if backend else None


def is_read_only() -> bool:
    """Whether a backend whose tables the pages show leaves them only looking, *Retry* and *Cancel*.

    The backends of one database share its rows, so the strictest of them decides.
    """
    database = queue_database()
    backends = (task_backends[alias] for alias in (backends_on(database) if database else ()))
    return any(isinstance(backend, HorsiesBackend) and backend.parsed.options.admin.read_only for backend in backends)


class BoundedPaginator(AnyPaginator):
    """Counts no further than ``COUNTED`` rows, however many there are."""

    @cached_property
    def count(self) -> int:
        """The number of rows, or ``COUNTED`` if there are more."""
        rows: Any = self.object_list
        return int(rows.order_by()[:MAX_COUNTED].count())


#: What Django's own filters of a field, and a date hierarchy, put behind the field's name.
_LOOKUPS: Final = ("", "__exact", "__in", "__isnull", "__isempty", "__gte", "__gt", "__lt", "__lte",
                   "__year", "__month", "__day")  # fmt: skip


class QueueModelAdmin(AnyModelAdmin):
    """An admin of one of the queue's tables, which may hold millions of rows."""

    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 50

    class Media:
        css = {"all": ["horsies_django/admin.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Read the queue's own database, wherever the routers would send a read."""
        rows = super().get_queryset(request)
        database = queue_database()
        return rows.using(database) if database else rows

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow the parameters of the list's own filters and no other: Django answers 400 to those.

        Django itself allows every lookup of the model's own columns. ``kwargs__password__startswith`` would read a
        masked value letter by letter, and ``__regex`` hold a web process for as long as the expression's author likes.
        """
        if any(lookup in _parameters_of(declared) for declared in self.get_list_filter(request)):
            return True
        if self.date_hierarchy and lookup in _with_lookups(self.date_hierarchy):
            return True
        limits = (limit() if callable(limit) else limit for limit in self.model._meta.related_fkey_lookups)
        return any((lookup, value) in url_params_from_lookup_dict(limit).items() for limit in limits)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Find nothing by what PostgreSQL takes for no text, where Django would fail."""
        return None if "\0" in object_id else super().get_object(request, object_id, from_field)

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Give Django's own page the style sheet, which breaks long names."""
        return super().history_view(request, object_id, {"media": self.media, **(extra_context or {})})


def _parameters_of(declared: Any) -> Container[str]:
    """Return the parameters that one entry of ``list_filter`` reads from the address."""
    if isinstance(declared, str):
        return _with_lookups(declared)
    if isinstance(declared, tuple | list):  # a field, and the filter of it
        return _with_lookups(declared[0])
    names: Container[str] = getattr(declared, "parameter_names", None) or {getattr(declared, "parameter_name", "")}
    return names


def _with_lookups(field: Any) -> Container[str]:
    return {f"{field}{lookup}" for lookup in _LOOKUPS}


class ReadOnlyAdmin(QueueModelAdmin):
    """Rows that only the queue itself writes."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds a row by hand."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody edits a row by hand."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody deletes a row by hand."""
        return False
