"""Parse the search field of the task list."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.contrib.admin.views.main import SEARCH_VAR
from django.db.models import Lookup, OuterRef, Q, QuerySet, Subquery
from django.db.models.fields.json import KT
from django.db.models.lookups import IContains
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...core.status import TASK_LIVE_STATES
from ...enqueue.masking import Mask, mask_of
from ...models import TaskAttempt
from ...ops.keyset import scopes
from ...ops.keyset.keys import Key
from ...ops.keyset.scan import PAGE, KeyRange, RowFilter
from ...ops.keyset.scopes import ScanScope
from ...ops.payload_view.contents import contents_of
from ...ops.payload_view.excerpt import with_short_arguments

HELP: Final = _(
    "A task id, part of a task name, status:failed for a state, args:text for text in the arguments, or "
    "error:text for text in an error code or message. Each page searches at least 50,000 tasks (fewer for "
    "args:) and shows where it stopped."
)

#: Maximum stored size in bytes of arguments that are searched.
MAX_SEARCHED_BYTES: Final = 32_000


@dataclass(frozen=True, slots=True)
class Search:
    """A parsed search: a condition, the scope and bounds of matching rows, and a filter in Python.

    ``is_slow`` says that each row has to be read whole.
    """

    rows: Q = field(default_factory=Q)
    scope: ScanScope = scopes.TABLE
    bounds: KeyRange = field(default_factory=KeyRange)
    row_filter: RowFilter | None = None
    is_slow: bool = False


def is_unreadable(request: HttpRequest) -> bool:
    """Return whether the search has a NUL. Django shows an error for it and would then list everything."""
    return "\0" in request.GET.get(SEARCH_VAR, "")


def parse_search(text: str) -> Search:
    """Parse a search. Every text is valid: without a qualifier or an id it is a part of a name."""
    text = text.replace("\0", "").strip()
    if not text:
        return Search()
    qualifier, colon, rest = text.partition(":")
    if colon and qualifier.lower() in _QUALIFIERS and (rest := rest.strip()):
        return _QUALIFIERS[qualifier.lower()](rest)
    if is_id(text):
        return Search(Q(pk=UUID(text)), bounds=KeyRange(UUID(text), UUID(text)))
    return Search(Q(task_name__contains=text))


def is_id(text: str) -> bool:
    """Return whether the text is an id."""
    with suppress(ValueError):
        return bool(UUID(text.strip()))
    return False


def _in_args(text: str) -> Search:
    """Search the masked arguments, and nothing else.

    The text is not part of the SQL: the database would search masked values too, and its response time would reveal
    whether they contain the text. So each task's arguments are masked first and then searched in Python.
    """
    return Search(row_filter=partial(_ids_with_visible_text, text), is_slow=True)


def _ids_with_visible_text(text: str, tasks: QuerySet[Any]) -> Iterator[Key]:
    """Yield the ids of the tasks whose masked arguments contain a text."""
    wanted = {_normalize(spelling) for spelling in (text, json.dumps(text, ensure_ascii=False)[1:-1])}
    masks: dict[str, Mask] = {}
    for task in with_short_arguments(tasks.only("task_name"), MAX_SEARCHED_BYTES).iterator(chunk_size=PAGE):
        contents = contents_of(task)
        if task.task_name not in masks:
            masks[task.task_name] = mask_of(task.task_name)
        contents.mask = masks[task.task_name]
        seen = [_normalize(contents.text(part)) for part in ("args", "kwargs")]
        if any(one in part for one in wanted for part in seen):
            yield task.pk


def _normalize(text: str) -> str:
    """Return a text without whitespace and in one case, since databases and pages write those differently."""
    return "".join(text.split()).casefold()


def _in_error(text: str) -> Search:
    where = [KT(f"result__err__{key}") for key in ("message", "exception__type", "exception__message")]
    rows = Q(error_code__icontains=text)
    for value in where:
        rows |= Q(_contains(value, text))
    # A task that waits for a retry has no result yet, so its last attempt is searched.
    attempts = TaskAttempt.objects.filter(task=OuterRef("pk")).order_by("-attempt")
    for column in ("error_message", "exception_class"):
        of_last = Subquery(attempts.values(column)[:1])
        rows |= Q(_contains(of_last, text), status__in=sorted(TASK_LIVE_STATES))
    return Search(Q(error_code__isnull=False) & rows, scopes.WITH_ERROR)


def _in_status(text: str) -> Search:
    return Search(Q(status=text.upper()), scopes.of_status(text.upper()))


_QUALIFIERS: Final = {"args": _in_args, "error": _in_error, "status": _in_status}


def _contains(value: Any, text: str) -> Lookup[Any]:
    return IContains(value, text)
