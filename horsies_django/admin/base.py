"""What the queue's admin pages have in common: their database, no unbounded count, nothing to edit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property

from ..backend import HorsiesBackend
from ..compat import task_backends
from ..walking.extent import COUNTED

if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
    AnyModelAdmin = admin.ModelAdmin[Any]
    AnyStackedInline = admin.StackedInline[Any, Any]
else:  # generic in the type stubs only
    AnyPaginator, AnyModelAdmin, AnyStackedInline = Paginator, admin.ModelAdmin, admin.StackedInline


def own_backend() -> HorsiesBackend | None:
    """Return the first of the backends that are ours, if one is."""
    backends = (task_backends[alias] for alias in task_backends)
    return next((backend for backend in backends if isinstance(backend, HorsiesBackend)), None)


def own_backends(database: str) -> list[str]:
    """Return the aliases of our backends that have their tables in a database."""
    backends = ((alias, task_backends[alias]) for alias in task_backends)
    ours = ((alias, backend) for alias, backend in backends if isinstance(backend, HorsiesBackend))
    return [alias for alias, backend in ours if backend.parsed.options.database == database]


def queue_database() -> str | None:
    """Return the alias of the queue's database; None leaves it to the routers."""
    backend = own_backend()
    return backend.parsed.options.database if backend else None


class BoundedPaginator(AnyPaginator):
    """Counts no further than ``COUNTED`` rows, however many there are."""

    @cached_property
    def count(self) -> int:
        """The number of rows, or ``COUNTED`` if there are more."""
        rows: Any = self.object_list
        return int(rows.order_by()[:COUNTED].count())


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

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Find nothing by what PostgreSQL takes for no text, where Django would fail."""
        return None if "\0" in object_id else super().get_object(request, object_id, from_field)

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Give Django's own page the style sheet, which breaks long names."""
        return super().history_view(request, object_id, {"media": self.media, **(extra_context or {})})


class ReadOnlyAdmin(QueueModelAdmin):
    """Rows that only the queue itself writes (S4-69)."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds a row by hand."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody edits a row by hand."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody deletes a row by hand."""
        return False
