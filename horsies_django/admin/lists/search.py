"""What the search field of the task list takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.contrib.admin.views.main import SEARCH_VAR
from django.db.models import Lookup, Q, QuerySet, TextField
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.db.models.lookups import IContains
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...showing.contents import contents_of, with_texts
from ...walking import grounds
from ...walking.grounds import Ground
from ...walking.keys import Key
from ...walking.walk import PAGE, Bounds, Sift

HELP: Final = _(
    "An id; a part of a task's name; args:text for what is in the arguments; error:text for what is in the code or the "
    "message of an error. A page looks through 50,000 tasks or more, and says where it stopped."
)


@dataclass(frozen=True, slots=True)
class Search:
    """What was searched for: a condition, where the rows that meet it are, and which of them may be found by it.

    ``is_slow`` says that the condition reads all of a row, however large.
    """

    rows: Q = field(default_factory=Q)
    ground: Ground = grounds.WHOLE
    bounds: Bounds = field(default_factory=Bounds)
    sift: Sift | None = None
    is_slow: bool = False


def is_unreadable(request: HttpRequest) -> bool:
    """Whether something was typed of which Django keeps nothing: it says so, and would go on as if it was not typed."""
    return "\0" in request.GET.get(SEARCH_VAR, "")


def parse(text: str) -> Search:
    """Read what was typed. Nothing is wrong: what is no id and has no qualifier is part of a name."""
    text = text.replace("\0", "").strip()
    if not text:
        return Search()
    qualifier, colon, rest = text.partition(":")
    if colon and qualifier.lower() in _QUALIFIERS and (rest := rest.strip()):
        return _QUALIFIERS[qualifier.lower()](rest)
    if is_id(text):
        return Search(Q(pk=UUID(text)), bounds=Bounds(UUID(text), UUID(text)))
    return Search(Q(task_name__contains=text))


def is_id(text: str) -> bool:
    """Whether an id was typed."""
    with suppress(ValueError):
        return bool(UUID(text.strip()))
    return False


def _in_args(text: str) -> Search:
    return Search(_has("args", text) | _has("kwargs", text), sift=partial(_with_text_in_sight, text), is_slow=True)


def _with_text_in_sight(text: str, tasks: QuerySet[Any]) -> Iterator[Key]:
    """Yield the ids of those whose arguments have a text where people may see it: a search tells nothing masked."""
    wanted = {_bare(spelling) for spelling in _spellings(text)}
    for task in with_texts(tasks.only("task_name"), "args", "kwargs").iterator(chunk_size=PAGE):
        seen = [_bare(contents_of(task).text(part)) for part in ("args", "kwargs")]
        if any(one in part for one in wanted for part in seen):
            yield task.pk


def _bare(text: str) -> str:
    """Return a text without what a database and a page write differently: the space, and upper and lower case."""
    return "".join(text.split()).casefold()


def _in_error(text: str) -> Search:
    where = [KT(f"result__err__{key}") for key in ("message", "exception__type", "exception__message")]
    rows = Q(error_code__icontains=text)
    for value in where:
        rows |= Q(_contains(value, text))
    return Search(Q(error_code__isnull=False) & rows, grounds.UNHAPPY)


_QUALIFIERS: Final = {"args": _in_args, "error": _in_error}


def _has(column: str, text: str) -> Q:
    """Return whether a column of JSON has a text, as it was typed or as JSON spells it."""
    value: Any = Cast(column, TextField())
    rows = Q()
    for spelling in _spellings(text):
        rows |= Q(_contains(value, spelling))
    return rows


def _spellings(text: str) -> dict[str, None]:
    as_json = json.dumps(text, ensure_ascii=False)[1:-1]
    return dict.fromkeys((text, _in_ascii(text), as_json, _in_ascii(as_json)))


def _in_ascii(text: str) -> str:
    """Return a text with every other letter as JSON spells it that is kept as text."""
    return "".join(letter if letter.isascii() else json.dumps(letter)[1:-1] for letter in text)


def _contains(value: Any, text: str) -> Lookup[Any]:
    return IContains(value, text)
