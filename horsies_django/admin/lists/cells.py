"""Cells of lists: a main line and quieter ones below it; shortened ids."""

from __future__ import annotations

from typing import Any, Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..copy_button import copy_button

#: Characters of an id.
SHORT: Final = 9


def cell(main: SafeString | str, *others: SafeString | str) -> SafeString:
    """Return a cell with a main line and further ones, without the empty ones."""
    first = format_html('<span class="horsies-main">{}</span>', main) if main else ""
    rest = format_html_join("", '<span class="horsies-second">{}</span>', ((other,) for other in others if other))
    return format_html("{}{}", first, rest)


def short(text: str, length: int = SHORT) -> str:
    """Return a text, or the end of one that is longer than ``length``."""
    return text if len(text) <= length else f"…{text[-length + 1 :]}"


def short_id(key: Any) -> SafeString:
    """Return the end of an id, because ids made at about the same time begin alike, with a button that copies it."""
    button = copy_button(_("Copy the id"), text=key)
    shown = '<span class="horsies-id"><span title="{}">{}</span> {}</span>'
    return format_html(shown, key, short(str(key)), button)
