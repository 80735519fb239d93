"""Admin pages that refresh parts of themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.forms.widgets import Media
from django.utils.html import format_html
from django.utils.safestring import SafeString

from .actions.action_admin import ActionAdmin


class LiveAdmin(ActionAdmin):
    """An admin whose pages load the script that refreshes parts of them."""

    change_list_template = "admin/horsies_django/live_change_list.html"

    @property
    def media(self) -> Media:
        """Add the script."""
        return super().media + Media(js=["horsies_django/live.js"])


def live_column(column: Callable[[Any, Any], Any]) -> Callable[[Any, Any], SafeString]:
    """Return a list column whose cells refresh one by one. Django's own script keeps the checkboxes beside them."""

    def cell(admin: Any, row: Any) -> SafeString:
        shown = column(admin, row)
        return format_html('<span id="{}-{}" data-horsies-live>{}</span>', column.__name__, row.pk, shown)

    cell.__dict__.update(column.__dict__)
    cell.__name__, cell.__doc__ = column.__name__, column.__doc__
    return cell
