"""Links to the page of an error group and to its tasks."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...models import ErrorGroup
from ..links import Links
from ..periods import PARAMETER

#: The parameter of the task list that filters by error group.
FINGERPRINT: Final = "fingerprint"


def same_error_link(fingerprint: str | None, links: Links) -> SafeString | str:
    """Return a link to the page of an error group: all tasks with this error. Empty without a group."""
    if not fingerprint or not links.can_view(ErrorGroup):
        return ""
    link = links.to(ErrorGroup, fingerprint, _("All tasks with this error"))
    return format_html('<span class="horsies-same-error">{}</span>', link)


class ErrorUrls:
    """The addresses of the pages of errors and of the task list on one site; None where the site lacks the page."""

    def __init__(self, site: AdminSite) -> None:
        self._site = site

    def errors(self, period: str, **query: str) -> str | None:
        """Return the address of the list of errors."""
        return self._reverse("errorgroup_changelist", {**query, PARAMETER: period})

    def group(self, fingerprint: str, period: str) -> str | None:
        """Return the address of a group's page."""
        return self._reverse("errorgroup_change", {PARAMETER: period}, quote(fingerprint))

    def tasks(self, fingerprint: str, **query: str) -> str | None:
        """Return the address of the list of a group's tasks, with the internal steps of workflows."""
        return self._reverse("task_changelist", {FINGERPRINT: fingerprint, **query, "kind": "all"})

    def _reverse(self, name: str, query: dict[str, str], *args: Any) -> str | None:
        try:
            address = reverse(f"{self._site.name}:horsies_django_{name}", args=args)
        except NoReverseMatch:
            return None
        return f"{address}?{urlencode(query)}"
