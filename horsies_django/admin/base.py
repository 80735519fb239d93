"""Base classes of the admin pages: they read the queue's database, count a bounded number of rows, and edit nothing."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.widgets import url_params_from_lookup_dict
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.forms.widgets import Media
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.text import capfirst
from django.utils.translation import gettext

from ..core.backends import ConfiguredBackend, all_backends
from ..core.numbers import format_duration
from ..db.postgres import age_of_replica
from ..models import Task
from .links import can_view
from .live import answer_unchanged

if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
    AnyModelAdmin = admin.ModelAdmin[Any]
    AnyStackedInline = admin.StackedInline[Any, Any]
else:  # generic in the type stubs only
    AnyPaginator, AnyModelAdmin, AnyStackedInline = Paginator, admin.ModelAdmin, admin.StackedInline


def first_backend() -> ConfiguredBackend | None:
    """Return the first configured horsies backend; None if there is none."""
    return next(iter(all_backends()), None)


def queue_database() -> str | None:
    """Return the alias of the first horsies backend's database; None leaves the choice to the routers."""
    backend = first_backend()
    return backend.parsed.options.database if backend else None


def read_database() -> str | None:
    """Return the alias that lists and charts read: the replica of the queue's database, if the settings name one."""
    backend = first_backend()
    return backend.parsed.options.for_reading.database if backend else None


def replica_note() -> str:
    """Return which replica a page reads, and the age of its last change; empty if it reads the queue's own database."""
    backend = first_backend()
    if backend is None or not (alias := backend.parsed.options.read_database):
        return ""
    if (seconds := age_of_replica(alias)) is None:
        return gettext("Read from the database %s.") % alias
    names = {"name": alias, "age": format_duration(seconds)}
    return gettext("Read from the replica %(name)s, whose last change is %(age)s old.") % names


def is_read_only() -> bool:
    """Return whether the admin is read-only: only viewing, *Retry* and *Cancel* are allowed.

    Backends that share a database share its rows, so it is read-only if any of them has ``admin.read_only``.
    """
    options = [backend.parsed.options for backend in all_backends()]
    return any(each.admin.read_only for each in options if each.database == options[0].database)


#: Upper bound for counts that a page shows in passing.
MAX_COUNTED: Final = 10_000

#: Apps that replace the admin's look. Each has a style sheet of ours.
SKINS: Final = ("unfold", "jazzmin")


def style_sheets(*sheets: str) -> Media:
    """Return our style sheet, these further ones, and those that give our pages the look of an installed skin."""
    skins = [skin for skin in SKINS if apps.is_installed(skin)]
    return Media(css={"all": [f"horsies_django/{sheet}.css" for sheet in ("admin", *sheets, *skins)]})


class BoundedPaginator(AnyPaginator):
    """Counts at most ``MAX_COUNTED`` rows."""

    @cached_property
    def count(self) -> int:
        """The number of rows, at most ``MAX_COUNTED``."""
        rows: Any = self.object_list
        return int(rows.order_by()[:MAX_COUNTED].count())


#: Lookups that Django's own field filters and ``date_hierarchy`` append to a field's name.
_LOOKUPS: Final = ("", "__exact", "__in", "__isnull", "__isempty", "__gte", "__gt", "__lt", "__lte",
                   "__year", "__month", "__day")  # fmt: skip


class QueueModelAdmin(AnyModelAdmin):
    """Base admin of the queue's tables, which may hold millions of rows."""

    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 50

    @property
    def media(self) -> Media:
        """Load our style sheets."""
        return style_sheets() + super().media

    def page_name(self, page: str) -> str:
        """Return the name of the URL of one of its pages, such as ``change``."""
        return f"{self.opts.app_label}_{self.opts.model_name}_{page}"

    def page_url(self, page: str, *args: Any) -> str:
        """Return the URL of one of its pages."""
        return reverse(f"{self.admin_site.name}:{self.page_name(page)}", args=args)

    def render(self, request: HttpRequest, template: str, context: Mapping[str, Any]) -> TemplateResponse:
        """Return a page of this admin besides those that Django has."""
        request.current_app = self.admin_site.name  # as every admin page does
        common = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media}
        return TemplateResponse(request, f"admin/horsies_django/{template}.html", {**common, **context})

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Read from the queue's database, whatever the routers say; a list, unless it acts, from the replica."""
        rows, match = super().get_queryset(request), request.resolver_match
        is_list = request.method == "GET" and match is not None and match.url_name == self.page_name("changelist")
        database = read_database() if is_list else queue_database()
        return rows.using(database) if database else rows

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow only the parameters of this list's own filters; Django answers 400 to others.

        Django itself allows every lookup on the model's own columns. ``kwargs__password__startswith`` could then read a
        masked value letter by letter, and ``__regex`` could occupy a web process for as long as its author likes.
        """
        if any(lookup in _parameters_of(declared) for declared in self.get_list_filter(request)):
            return True
        if self.date_hierarchy and lookup in _with_lookups(self.date_hierarchy):
            return True
        limits = (limit() if callable(limit) else limit for limit in self.model._meta.related_fkey_lookups)
        return any((lookup, value) in url_params_from_lookup_dict(limit).items() for limit in limits)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Name the rows in the title; Django would ask to select one."""
        context = {
            "title": capfirst(self.opts.verbose_name_plural),
            "folds_filters": not apps.is_installed("unfold"),  # it has a panel of its own for them
            "replica_note": replica_note(),
        }
        response: HttpResponse = super().changelist_view(request, {**context, **(extra_context or {})})
        return answer_unchanged(request, response)

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Answer a refresh with 304 if the live parts of the page have not changed."""
        return answer_unchanged(request, super().changeform_view(request, *args, **kwargs))

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Title the page of a row with the row; the breadcrumbs say what it is."""
        if (row := kwargs.get("obj")) is not None:
            context |= {"title": self.page_title(row), "subtitle": None}
        response: HttpResponse = super().render_change_form(request, context, *args, **kwargs)
        return response

    def page_title(self, row: Any) -> str:
        """Return the title of a row's page."""
        return str(row)

    def has_right(self, request: HttpRequest, name: str) -> bool:
        """Return whether this user may ``add``, ``change`` or ``delete`` rows: False if the admin is read-only."""
        return not is_read_only() and request.user.has_perm(f"{self.opts.app_label}.{name}_{self.opts.model_name}")

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return None for an id with a NUL, which PostgreSQL does not accept in text."""
        return None if "\0" in object_id else super().get_object(request, object_id, from_field)

    def not_found(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Redirect with a message that there is no such row, as every admin page does."""
        response: HttpResponse = self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined]  # not in the stubs
        return response

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Add the style sheet to Django's history page; it wraps long names."""
        return super().history_view(request, object_id, {"media": self.media, **(extra_context or {})})


def _parameters_of(declared: Any) -> Container[str]:
    """Return the query parameters that one entry of ``list_filter`` reads."""
    if isinstance(declared, str):
        return _with_lookups(declared)
    if isinstance(declared, tuple | list):  # a field and its filter class
        return _with_lookups(declared[0])
    names: Container[str] = getattr(declared, "parameter_names", None) or {getattr(declared, "parameter_name", "")}
    return names


def _with_lookups(field: Any) -> Container[str]:
    return {f"{field}{lookup}" for lookup in _LOOKUPS}


class ReadOnlyAdmin(QueueModelAdmin):
    """Admin of rows that only the queue writes."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: rows are not added by hand."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False: rows are not edited by hand."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False: rows are not deleted by hand."""
        return False


class TaskViewerAdmin(ReadOnlyAdmin):
    """Pages that need no permission of their own: users who may view tasks may view them."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether this user may view tasks."""
        return can_view(self.admin_site, request, Task)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return whether this user may view tasks."""
        return self.has_view_permission(request)
