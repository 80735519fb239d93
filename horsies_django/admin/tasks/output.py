"""What a task has written and logged: on its page, in the download, and on the page of its error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime
from itertools import groupby, takewhile
from operator import attrgetter
from typing import Any, Final, NamedTuple

from django.db.models import Case, F, Sum, TextField, Value, When, Window
from django.db.models.functions import Cast, Coalesce, Length
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as _

from ...core.mask import MASKED, Mask
from ...core.status import OutputKind
from ...enqueue.output import OutputChunk, masked, read
from ...models import Task, TaskOutput
from ...ops.payload_view.contents import contents_of, decode
from ...ops.payload_view.json_text import chunks as json_chunks

#: Maximum chunks on a page, and characters of their JSON: the log that attempts keep by default fits.
MAX_CHUNKS: Final = 4_000
MAX_SIZE: Final = 80_000

#: Maximum entries, and lines of a text, from the end of a failed attempt.
MAX_LAST: Final = 10


class Entry(NamedTuple):
    """A record of the log, or what stands between two records. ``time`` and ``level`` are empty without a record."""

    attempt: int
    day: date
    text: str
    time: str = ""
    level: str = ""
    logger: str = ""


def output_of(task: Task, address: str) -> dict[str, Any]:
    """Return the end of the output for the task's page; nothing if there is none. Takes at most one statement.

    ``address`` is that of the download.
    """
    if not task.claim or not (rows := _latest(task)):
        return {}
    shown = _readable(rows)
    parts = groupby(_entries(shown, contents_of(task).mask), attrgetter("attempt", "day"))
    html = format_html_join("\n", "<h3>{}</h3>\n{}", ((_heading(*key), _lines(entries)) for key, entries in parts))
    is_cut = not shown or shown[0].sequence > 1
    return {"box": _box(html) if shown else "", "is_cut": is_cut, "download": address}


def last_output(task: Task, attempt: int) -> SafeString | str:
    """Return the last entries of an attempt, or an empty text. Takes one statement."""
    rows = _readable(_latest(task, attempt=attempt))
    entries = list(_entries(rows, contents_of(task).mask))[-MAX_LAST:]
    return _box(_lines(map(_end, entries))) if entries else ""


def _end(entry: Entry) -> Entry:
    """Return the last lines of what is no record: the first line of a record is its message, before a traceback."""
    return entry if entry.time else entry._replace(text="\n".join(entry.text.splitlines()[-MAX_LAST:]))


def output_text(task: Task) -> str:
    """Return all output as plain text."""
    rows = read(str(task._state.db), task.pk, 0)
    parts = groupby(_entries(rows, contents_of(task).mask), attrgetter("attempt", "day"))
    return "\n".join(line for key, entries in parts for line in (_heading(*key), *map(_plain, entries)))


def _latest(task: Task, **columns: Any) -> list[Any]:
    """Return the last rows, newest first, with ``text`` as far as the sizes add up to ``MAX_SIZE``."""
    rows = TaskOutput.objects.using(task._state.db).filter(task=task.pk, **columns).order_by("-sequence")
    json = Coalesce(Cast("data", TextField()), Value("null", TextField()))
    sized = rows.annotate(size=Window(Sum(Length(json)), order_by=F("sequence").desc()))
    texts = sized.annotate(text=Case(When(size__lte=MAX_SIZE, then=json)))
    return list(texts.values("sequence", "attempt", "kind", "at", "text")[:MAX_CHUNKS])


def _readable(rows: Iterable[Any]) -> list[OutputChunk]:
    """Return the chunks that have been read, oldest first."""
    read = takewhile(lambda row: row["text"] is not None, rows)
    return [OutputChunk(data=decode(row.pop("text")), **row) for row in read][::-1]


def _entries(chunks: Iterable[OutputChunk], mask: Mask) -> Iterator[Entry]:
    """Yield the output, masked. Texts that follow one another are one entry, as they may be parts of a line."""
    zone = get_current_timezone()
    shown = ((masked(chunk, mask), chunk.at.astimezone(zone)) for chunk in chunks)
    for (attempt, day, is_text), run in groupby(shown, _group):
        if is_text:
            texts = [chunk.data for chunk, _at in run]
            yield Entry(attempt, day, MASKED if {*texts} == {MASKED} else "".join(texts))
            continue
        for chunk, at in run:
            data = chunk.data
            if chunk.kind == OutputKind.LOG and isinstance(data, dict):
                time = f"{at:%H:%M:%S}.{at.microsecond // 1_000:03}"
                level, logger, message = (str(data.get(name, "")) for name in ("level", "logger", "message"))
                yield Entry(attempt, day, message, time, level, logger)
            else:
                text = data if isinstance(data, str) else "".join(json_chunks(data, mask))
                yield Entry(attempt, day, text)


def _group(shown: tuple[OutputChunk, datetime]) -> tuple[int, date, bool]:
    chunk, at = shown
    return chunk.attempt, at.date(), chunk.kind == OutputKind.OUTPUT and isinstance(chunk.data, str)


def _heading(attempt: int, day: date) -> str:
    return f"{_('Attempt %(number)s') % {'number': attempt}} · {day}"


def _plain(entry: Entry) -> str:
    words = (entry.time, entry.level, entry.logger, entry.text.removesuffix("\n"))
    return " ".join(word for word in words if word)


#: A record of the log, and what stands between two records, as HTML. The numbers are those of the texts of an entry.
_RECORD: Final = (
    '<div data-level="{2}"><span class="quiet">{1}</span> <b>{2}</b> <span class="quiet">{3}</span> {0}</div>'
)
_TEXT: Final = "<div>{0}</div>"


def _lines(entries: Iterable[Entry]) -> SafeString:
    """Return entries as HTML, with line breaks between them for those who copy them."""
    runs = groupby(entries, lambda entry: _RECORD if entry.time else _TEXT)
    parts = ((format_html_join("\n", html, (entry[2:] for entry in run)),) for html, run in runs)
    return format_html_join("\n", "{}", parts)


def _box(html: SafeString) -> SafeString:
    """Return a box that scrolls, so it must be focusable by keyboard."""
    box = '<div class="horsies-text horsies-output" id="horsies-output-text" tabindex="0" data-horsies-follow>{}</div>'
    return format_html(box, html)
