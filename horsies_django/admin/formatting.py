"""Format values of rows for a page: escaped, indented, and truncated if long; cells with several lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.template.defaultfilters import filesizeformat
from django.template.loader import render_to_string
from django.utils.formats import date_format
from django.utils.html import conditional_escape, format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from ..core.mask import Mask
from ..core.numbers import fill_numbers, format_lower_bound, format_number

if TYPE_CHECKING:
    from ..ops.metrics import Count

#: The style sheets and the scripts of the button, for ``Media``.
COPY_CSS: Final = {"all": ["horsies_django/copy.css"]}
COPY_JS: Final = ["horsies_django/copy.js"]

#: Maximum number of characters of one value on a page.
MAX_SHOWN: Final = 16_384

#: Maximum number of characters of a text that stands among others, such as the class of an exception.
MAX_TEXT: Final = 255

#: Characters of a shortened id.
SHORT: Final = 9

#: A value with more characters than this is folded.
FOLD_ABOVE: Final = 2_000


def format_count(count: Count) -> str:
    """Return a count, with a plus sign if it is a lower bound."""
    return format_lower_bound(count.number, count.is_more)


def exactness_note(count: Count) -> str:
    """Return a note for a count that is a lower bound."""
    return _("A lower bound: counting stops here.") if count.is_more else ""


def fill(text: str, *values: Any) -> SafeString:
    """Return a translated text with its ``%s`` filled in, as HTML: values that are not marked as safe are escaped."""
    return format_html(conditional_escape(text).replace("{", "{{").replace("}", "}}").replace("%s", "{}"), *values)


def time_column(
    name: str, title: Any, *, exactly: bool = False, is_shown: Callable[[Any], bool] = lambda row: True
) -> Any:
    """Return a column for the time in field ``name``, in the reader's zone; with ``exactly`` to the millisecond.

    It is empty for a row that ``is_shown`` refuses.
    """

    @admin.display(description=title)
    def column(_: Any, row: Any) -> str:
        return format_time(getattr(row, name), exactly=exactly) if is_shown(row) else ""

    return column


def format_time(value: datetime | None, *, exactly: bool = True) -> str:
    """Return a time in the reader's time zone, to the millisecond or to the second; a dash for None."""
    if value is None:
        return "-"
    local = localtime(value)
    text = date_format(local, "Y-m-d H:i:s")
    return f"{text}.{local.microsecond // 1_000:03}" if exactly else text


def text_block(text: str, *, end: bool = False, key: str = "") -> SafeString | str:
    """Return ``text`` as a ``<pre>`` block, with the id ``key`` if there is one; a dash without a text.

    If it is too long, show its beginning, or with ``end`` its end.
    """
    if not text:
        return "-"
    left = len(text) - MAX_SHOWN
    if left > 0:
        more = fill_numbers(_("… %d more characters"), left)
        text = f"{more}\n{text[-MAX_SHOWN:]}" if end else f"{text[:MAX_SHOWN]}\n{more}"
    # It scrolls, so it must be focusable by keyboard.
    attribute = format_html(' id="{}"', key) if key else ""
    return format_html('<pre class="horsies-text"{} tabindex="0">{}</pre>', attribute, text)


def cut(text: str) -> str:
    """Return a text of a row that stands among others, cut at ``MAX_TEXT`` characters."""
    return Truncator(text).chars(MAX_TEXT)


def progress_bar(progress: Any) -> SafeString | str:
    """Return the progress that a task reported: a bar if the total is known, the numbers and the message."""
    if not isinstance(progress, dict) or not isinstance(done := progress.get("done"), int | float):
        return "-"
    total, words = progress.get("total"), cut(str(progress.get("message") or ""))
    if not total or not isinstance(total, int | float):
        return f"{format_number(done)} {words}".strip()
    return format_html(
        '<progress class="horsies-progress" aria-label="{}" value="{}" max="{}"></progress> {} {}',
        _("progress"),
        done,
        total,
        f"{format_number(done)}/{format_number(total)}",
        words,
    )


def as_json(value: Any, mask: Mask | None = None) -> SafeString | str:
    """Return ``value`` as indented JSON; with a mask, sensitive keys are hidden."""
    from ..ops.payload_view.json_text import chunks

    if value is None:
        return "-"
    return text_block(
        "".join(chunks(value, mask)) if mask else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    )


def masked_json(name: str, value: Any, mask: Mask, size: int, address: str) -> SafeString | str:
    """Return ``value`` as indented JSON with sensitive keys hidden.

    ``name`` is the prefix of the elements' ids. The block is folded if it is long. A value that is too
    long is truncated: ``size`` is its number of characters in the table, and ``address`` is the URL of the whole value.
    """
    from ..ops.payload_view.json_text import head

    if value is None:
        return "-"
    text, is_all = head(value, mask, MAX_SHOWN)
    shown = format_html('<pre class="horsies-text" id="horsies-text-{}" tabindex="0">{}</pre>', name, text)
    if not is_all:
        shown = format_html("{}{}", shown, download_note(MAX_SHOWN, size, address))
    if len(text) <= FOLD_ABOVE:
        return shown
    words = _("Show (%(size)s)") % {"size": filesizeformat(size)}
    return format_html('<details id="horsies-value-{}"><summary>{}</summary>{}</details>', name, words, shown)


def download_note(shown: int, size: int, address: str) -> SafeString:
    """Return the line below a truncated value: how many of its characters stand above, and a link to all of it."""
    words = _("The first %(shown)s of a value of %(size)s.") % {
        "shown": filesizeformat(shown),
        "size": filesizeformat(size),
    }
    return format_html('<p class="horsies-more">{} <a href="{}">{}</a></p>', words, address, _("Download"))


def copy_button(label: Any, *, text: Any = "", target: str = "", show_label: bool = False) -> SafeString:
    """Return a button that copies ``text``, or what the element with the id ``target`` shows.

    ``text`` becomes part of the page, so the caller masks it. ``label`` says what is copied; screen readers read it.

    In a template, with ``only``::

        {% include "admin/horsies_django/copy_button.html" with label=label text=value only %}
        {% include "admin/horsies_django/copy_button.html" with label=label target="element-id" show_label=True only %}

    With ``target`` it copies what that element of the page shows, such as a masked value in a ``<pre>``, so the page
    does not contain the value twice. The page needs ``COPY_CSS`` and ``COPY_JS`` in its Media; without JavaScript it
    shows no button.
    """
    context = {"label": label, "text": text, "target": target, "show_label": show_label}
    return render_to_string("admin/horsies_django/copy_button.html", context)


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
