"""Links from one row to others: plain text where the site has no page for it, or this user may not look."""

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

from ..models import Schedule


def can_view(site: AdminSite, request: HttpRequest, model: type[Model]) -> bool:
    """Whether this user may see rows of a model: as the site's own page of it says, if it has one."""
    if site.is_registered(model):
        return bool(site.get_model_admin(model).has_view_permission(request))
    options = model._meta
    return request.user.has_perm(f"{options.app_label}.view_{options.model_name}")


class Links:
    """Makes links on one site for one user."""

    def __init__(self, site: AdminSite, request: HttpRequest) -> None:
        self._site = site
        self._request = request
        self._can_view: dict[type[Model], bool] = {}
        self._existing: dict[type[Model], set[Any]] = {}

    def load_existing(self, model: type[Model], keys: Collection[Any], database: str | None) -> None:
        """See which of these rows are there: from now on only those of the model are linked to. One statement."""
        if keys and self.can_view(model):
            rows = model._default_manager.using(database).filter(pk__in=keys)
            self._existing[model] = set(rows.values_list("pk", flat=True))

    def can_view(self, model: type[Model]) -> bool:
        """Whether this user may look at rows of a model, on a page of this site."""
        if model not in self._can_view:
            self._can_view[model] = self._site.is_registered(model) and can_view(self._site, self._request, model)
        return self._can_view[model]

    def to(self, model: type[Model], key: Any, words: Any = None) -> SafeString | str:
        """Return ``words``, else the key, as a link to the page of the row with this primary key."""
        words = str(key) if words is None else words
        if key is None or key not in self._existing.get(model, {key}):
            return str(words) if key is not None else "-"
        return self._link(model, "change", words, (quote(str(key)),))

    def to_list(self, model: type[Model], words: Any, **query: str) -> SafeString | str:
        """Return ``words`` as a link to the list of a model, filtered by ``query``."""
        return self._link(model, "changelist", words, (), query)

    def _link(
        self, model: type[Model], page: str, words: Any, args: tuple[str, ...], query: dict[str, str] | None = None
    ) -> SafeString | str:
        options = model._meta
        if not self.can_view(model):
            return str(words)
        try:
            address = reverse(f"{self._site.name}:{options.app_label}_{options.model_name}_{page}", args=args)
        except NoReverseMatch:  # a site that is not in the project's addresses by its name, or without this page
            return str(words)
        return format_html('<a href="{}">{}</a>', f"{address}?{urlencode(query)}" if query else address, words)


def schedule_link(key: int, database: str | None, links: Links) -> SafeString | str:
    """Return the name of a schedule as a link, if it is there still and this user may look at it; else its number."""
    name = None
    if links.can_view(Schedule):
        name = Schedule.objects.using(database).filter(pk=key).values_list("name", flat=True).first()
    return str(key) if name is None else links.to(Schedule, key, name)
