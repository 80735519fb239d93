"""Pages that keep themselves fresh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.forms.widgets import Media
from django.utils.html import format_html
from django.utils.safestring import SafeString

from .actions.action_admin import ActionAdmin


class LiveAdmin(ActionAdmin):
    """An admin whose pages have the script that keeps parts of them fresh."""

    change_list_template = "admin/horsies_django/live_change_list.html"

    @property
    def media(self) -> Media:
        """The script, beside all the rest."""
        return super().media + Media(js=["horsies_django/live.js"])


def live_column(column: Callable[[Any, Any], Any]) -> Callable[[Any, Any], SafeString]:
    """A list's column whose cells are kept fresh, each by itself: the boxes beside them are Django's own script's."""

    def cell(admin: Any, row: Any) -> SafeString:
        shown = column(admin, row)
        return format_html('<span id="{}-{}" data-horsies-live>{}</span>', column.__name__, row.pk, shown)

    cell.__dict__.update(column.__dict__)
    cell.__name__, cell.__doc__ = column.__name__, column.__doc__
    return cell
