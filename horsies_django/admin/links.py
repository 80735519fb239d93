"""Links between rows. They become plain text if the site has no such page or the user may not view it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import urlencode

from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..models import Schedule, Task


def can_view(site: AdminSite, request: HttpRequest, model: type[Model]) -> bool:
    """Return whether this user may view rows of a model, as the site's admin of that model decides if there is one."""
    if site.is_registered(model):
        return bool(site.get_model_admin(model).has_view_permission(request))
    options = model._meta
    return request.user.has_perm(f"{options.app_label}.view_{options.model_name}")


class Links:
    """Builds links on one site for one user."""

    def __init__(self, site: AdminSite, request: HttpRequest) -> None:
        self._site = site
        self._request = request
        self._can_view: dict[type[Model], bool] = {}
        self._existing: dict[type[Model], set[Any]] = {}

    def load_existing(self, model: type[Model], keys: Collection[Any], database: str | None) -> None:
        """Look up which of these rows exist; from now on only those of the model become links. Takes one statement."""
        if keys and self.can_view(model):
            rows = model._default_manager.using(database).filter(pk__in=keys)
            self._existing[model] = set(rows.values_list("pk", flat=True))

    def can_view(self, model: type[Model]) -> bool:
        """Return whether this site has pages for a model and this user may view them."""
        if model not in self._can_view:
            self._can_view[model] = self._site.is_registered(model) and can_view(self._site, self._request, model)
        return self._can_view[model]

    def to(self, model: type[Model], key: Any, words: Any = None) -> SafeString | str:
        """Return a link to the row with this primary key, labelled ``words`` or the key."""
        words = str(key) if words is None else words
        if key is None or key not in self._existing.get(model, {key}):
            return str(words) if key is not None else "-"
        return self._link(model, "change", words, (quote(str(key)),))

    def to_list(self, model: type[Model], words: Any, **query: str) -> SafeString | str:
        """Return a link to the list of a model, filtered by ``query`` and labelled ``words``."""
        return self._link(model, "changelist", words, (), query)

    def to_task_name(self, name: str) -> SafeString | str:
        """Return a link to the page of a task name."""
        return self._link(Task, "name", name, (name,)) if name else name

    def task_name_url(self, name: str) -> str | None:
        """Return the address of the page of a task name; None if the site has none or the user may not view it."""
        return self._url(Task, "name", (name,)) if name else None

    def task_names_url(self) -> str | None:
        """Return the address of the list of task names; None if the site has none or the user may not view it."""
        return self._url(Task, "names", ())

    def list_url(self, model: type[Model], **query: str) -> str | None:
        """Return the address of the list of a model; None if the site has none or the user may not view it."""
        address = self._url(model, "changelist", ())
        return f"{address}?{urlencode(query)}" if address and query else address

    def url(self, model: type[Model], key: Any, **query: str) -> str | None:
        """Return the address of a row's page; None if the site has none or the user may not view it."""
        address = self._url(model, "change", (quote(str(key)),))
        return f"{address}?{urlencode(query)}" if address and query else address

    def _link(
        self, model: type[Model], page: str, words: Any, args: tuple[str, ...], query: dict[str, str] | None = None
    ) -> SafeString | str:
        address = self._url(model, page, args)
        if address is None:
            return str(words)
        return format_html('<a href="{}">{}</a>', f"{address}?{urlencode(query)}" if query else address, words)

    def _url(self, model: type[Model], page: str, args: tuple[str, ...]) -> str | None:
        options = model._meta
        if not self.can_view(model):
            return None
        try:
            return reverse(f"{self._site.name}:{options.app_label}_{options.model_name}_{page}", args=args)
        except NoReverseMatch:  # the site is not in the URLconf under its name, or has no such page
            return None


def schedule_link(key: int, database: str | None, links: Links) -> SafeString | str:
    """Return a schedule's name as a link; its number if it is gone or this user may not view it."""
    name = None
    if links.can_view(Schedule):
        name = Schedule.objects.using(database).filter(pk=key).values_list("name", flat=True).first()
    return str(key) if name is None else links.to(Schedule, key, name)
