"""Links from one row to others: plain text where the site has no page for it, or this user may not look."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString


class Links:
    """Makes links on one site for one user."""

    def __init__(self, site: AdminSite, request: HttpRequest) -> None:
        self._site = site
        self._request = request
        self._may_look: dict[type[Model], bool] = {}

    def to(self, model: type[Model], key: Any, words: Any = None) -> SafeString | str:
        """Return ``words``, else the key, as a link to the page of the row with this primary key."""
        words = str(key) if words is None else words
        return self._link(model, "change", words, (quote(str(key)),)) if key is not None else "-"

    def among(self, model: type[Model], words: Any, **query: str) -> SafeString | str:
        """Return ``words`` as a link to the list of a model, filtered by ``query``."""
        return self._link(model, "changelist", words, (), query)

    def _link(
        self, model: type[Model], page: str, words: Any, args: tuple[str, ...], query: dict[str, str] | None = None
    ) -> SafeString | str:
        options = model._meta
        if not self._may(model):
            return str(words)
        try:
            address = reverse(f"{self._site.name}:{options.app_label}_{options.model_name}_{page}", args=args)
        except NoReverseMatch:  # a site that is not in the project's addresses by its name, or without this page
            return str(words)
        return format_html('<a href="{}">{}</a>', f"{address}?{urlencode(query)}" if query else address, words)

    def _may(self, model: type[Model]) -> bool:
        if model not in self._may_look:
            is_there = self._site.is_registered(model)
            self._may_look[model] = is_there and self._site.get_model_admin(model).has_view_permission(self._request)
        return self._may_look[model]
