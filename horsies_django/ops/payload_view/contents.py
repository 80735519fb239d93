"""What a task carries: its arguments, result, metadata and checkpoint, read once, and only as far as they are shown."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast
from django.utils.translation import gettext as _

from ...core.headers import slot_in
from ...enqueue.masking import Mask, mask_of
from ...models import Task
from .json_text import chunks

#: The columns that can be had as a whole, each with its place among a row's annotations.
PARTS: Final = {name: f"{name}_text" for name in ("args", "kwargs", "result", "metadata", "checkpoint")}

_EMPTY: Final = {None, "", "null", "[]", "{}"}


def with_payload_texts(tasks: QuerySet[Any], *parts: str) -> QuerySet[Any]:
    """Read these columns as text: what is in them may be more, or deeper, than Python reads, or damaged."""
    return with_text_columns(tasks, *parts).defer(*PARTS)


def with_text_columns(rows: QuerySet[Any], *columns: str) -> QuerySet[Any]:
    """Read these columns as text, and not as they are, until :func:`give_values`."""
    texts: QuerySet[Any] = rows.annotate(**{f"{column}_text": Cast(column, TextField()) for column in columns})
    return texts.defer(*columns)


def decode_text_columns(row: Any, *columns: str) -> None:
    """Give a row that was read with :func:`as_texts` its values; words for those that can't be read."""
    for column in columns:
        setattr(row, column, decode(getattr(row, f"{column}_text")))


class Contents:
    """The values of one task, masked as its task says."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._values: dict[str, Any] = {}

    @cached_property
    def mask(self) -> Mask:
        """What of the values may be seen."""
        return mask_of(self._task.task_name)

    def size(self, part: str) -> int:
        """The characters of a value in the table."""
        return len(getattr(self._task, PARTS[part], None) or "")

    def is_filled(self, part: str) -> bool:
        """Whether there is something in it."""
        return getattr(self._task, PARTS[part], None) not in _EMPTY

    def visible(self, part: str) -> Any:
        """Return what may be seen of a value; what is below its keys is judged as it is written."""
        value = self._value(part)
        if isinstance(value, _Unreadable):
            return value
        if part == "args":
            return self.mask.seen_args(value)
        if part == "kwargs":
            return self.mask.seen_kwargs(value)
        return None if value is None else self.mask.seen(part, value)

    def text(self, part: str) -> str:
        """Return all of a value, as JSON that people can read."""
        return "".join(chunks(self.visible(part), self.mask))

    @property
    def slot(self) -> datetime | None:
        """The slot of a schedule that it carries; also where its metadata is not to be seen, for this is ours."""
        return slot_in(self._value("metadata"))

    @property
    def error(self) -> dict[str, Any]:
        """The error of the task, if it has failed with one."""
        result = self._value("result")
        error = result.get("err") if isinstance(result, dict) else None
        return error if isinstance(error, dict) else {}

    @property
    def traceback(self) -> str:
        """The traceback of the error, if it has one."""
        exception = self.error.get("exception")
        return str(exception.get("traceback") or "") if isinstance(exception, dict) else ""

    @property
    def exception_type(self) -> str:
        """The class of the exception, if it failed with one; of Python's own without their module."""
        exception = self.error.get("exception")
        name = str(exception.get("type") or "") if isinstance(exception, dict) else ""
        return name.removeprefix("builtins.")

    def visible_result(self) -> Any:
        """Return the result without the traceback, which is shown by itself, and without what its error says twice."""
        seen = self.visible("result")
        exception = self.error.get("exception")
        if not isinstance(exception, dict) or not isinstance(seen, dict):
            return seen
        said = {"traceback": self.traceback or None, "message": self.error.get("message")}
        left = {key: value for key, value in exception.items() if key not in said or value != said[key]}
        return seen | {"err": self.error | {"exception": left}}

    def _value(self, part: str) -> Any:
        if part not in self._values:
            self._values[part] = decode(getattr(self._task, PARTS[part], None))
        return self._values[part]


class _Unreadable(str):
    """Words in the place of a value that can't be read."""

    __slots__ = ()


def decode(text: str | None) -> Any:
    """Return the value of a column that was read as text; words if it can't be read."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        # Nobody can say what in it is sensitive.
        return _Unreadable(_("This value can't be read: %s. It is not shown.") % type(error).__name__)


def contents_of(task: Task) -> Contents:
    """Return the contents of a task; the same ones for the same instance."""
    if not isinstance(found := task.__dict__.get("_contents"), Contents):
        found = task.__dict__["_contents"] = Contents(task)
    return found
