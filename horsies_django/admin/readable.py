"""Values off the task rows as text on a page: escaped, indented, cut where they are long."""

from __future__ import annotations

import json
from typing import Any, Final

from django.contrib import admin
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import template_localtime  # type: ignore[attr-defined]  # the stubs don't know it
from django.utils.translation import gettext as _

#: Characters of one value that a page shows.
SHOWN: Final = 16_384


def moment(name: str, title: Any) -> Any:
    """Return a column that shows the time in the field ``name`` to the second, in the reader's own zone."""

    @admin.display(description=title)
    def column(_: Any, row: Any) -> str:
        value = getattr(row, name)
        return date_format(template_localtime(value), "Y-m-d H:i:s") if value else "-"

    return column


def block(text: str) -> SafeString | str:
    """Return ``text`` as a block of its own, or a dash."""
    if not text:
        return "-"
    if len(text) > SHOWN:
        text = text[:SHOWN] + "\n" + _("… %d more characters") % (len(text) - SHOWN)
    return format_html('<pre class="horsies-text">{}</pre>', text)


def progress_bar(progress: Any) -> SafeString | str:
    """Return what a body said of its progress: a bar if it knows the whole, its numbers, its words."""
    if not isinstance(progress, dict) or not isinstance(done := progress.get("done"), int | float):
        return "-"
    total, words = progress.get("total"), progress.get("message") or ""
    if not total or not isinstance(total, int | float):
        return f"{done:n} {words}".strip()
    return format_html(
        '<progress class="horsies-progress" value="{}" max="{}"></progress> {} {}',
        done,
        total,
        f"{done:n}/{total:n}",
        words,
    )


def as_json(value: Any) -> SafeString | str:
    """Return ``value`` as indented JSON."""
    return "-" if value is None else block(json.dumps(value, indent=2, ensure_ascii=False, default=str))
