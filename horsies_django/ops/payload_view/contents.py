"""The payload columns of a task (arguments, result, metadata, checkpoint), decoded once and masked."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast
from django.utils.translation import gettext as _

from ...core.exceptions import NotRegistered
from ...core.headers import slot_in
from ...core.mask import MASKED, Mask, mask_of
from ...core.parameters import parameters_of
from ...core.registry import registry
from ...models import Task
from .json_text import chunks

#: The payload columns, each with the name of the annotation that has its text.
PARTS: Final = {name: f"{name}_text" for name in ("args", "kwargs", "result", "metadata", "checkpoint")}

_EMPTY: Final = {None, "", "null", "[]", "{}"}


def with_payload_texts(tasks: QuerySet[Any], *parts: str) -> QuerySet[Any]:
    """Read these payload columns as text, since their JSON may be too large or too deep for Python, or damaged."""
    return with_text_columns(tasks, *parts).defer(*PARTS)


def with_text_columns(rows: QuerySet[Any], *columns: str) -> QuerySet[Any]:
    """Read these columns as text and defer them; :func:`decode_text_columns` sets their values."""
    texts: QuerySet[Any] = rows.annotate(**{f"{column}_text": Cast(column, TextField()) for column in columns})
    return texts.defer(*columns)


def decode_text_columns(row: Any, *columns: str) -> None:
    """Set the values of a row from :func:`with_text_columns`; a message replaces a value that can't be decoded."""
    for column in columns:
        setattr(row, column, decode(getattr(row, f"{column}_text")))


class Contents:
    """The payload of one task, masked by its task's rules."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._values: dict[str, Any] = {}

    @cached_property
    def mask(self) -> Mask:
        """The mask of its task."""
        return mask_of(self._task.task_name)

    def size(self, part: str) -> int:
        """Return the number of characters of a value in the table."""
        return len(getattr(self._task, PARTS[part], None) or "")

    def is_filled(self, part: str) -> bool:
        """Return whether a value is neither null nor empty."""
        return getattr(self._task, PARTS[part], None) not in _EMPTY

    def visible(self, part: str) -> Any:
        """Return a value with its top level masked; :func:`.json_text.chunks` masks the nested keys."""
        value = self._value(part)
        if isinstance(value, _Unreadable):
            return value
        if part == "args":
            return self.mask.apply_to_args(value)
        if part == "kwargs":
            return self.mask.apply_to_kwargs(_in_call_order(self._task.task_name, value))
        return None if value is None else self.mask.apply(part, value)

    def stored(self, part: str) -> Any:
        """Return a value as it is stored, not masked: not for people. Raises ValueError if it can't be decoded."""
        value = self._value(part)
        if isinstance(value, _Unreadable):
            raise ValueError(str(value))
        return value

    def text(self, part: str) -> str:
        """Return a whole value as indented, masked JSON."""
        return "".join(chunks(self.visible(part), self.mask))

    @property
    def slot(self) -> datetime | None:
        """The schedule's slot in its metadata, which is never masked."""
        return slot_in(self._value("metadata"))

    @property
    def error(self) -> dict[str, Any]:
        """The error of a failed task, else an empty dict."""
        result = self._value("result")
        error = result.get("err") if isinstance(result, dict) else None
        return error if isinstance(error, dict) else {}

    @property
    def traceback(self) -> str:
        """The traceback of the error, or an empty string."""
        exception = self.error.get("exception")
        return str(exception.get("traceback") or "") if isinstance(exception, dict) else ""

    @property
    def exception_type(self) -> str:
        """The class of the exception, without the module for builtins, or an empty string."""
        exception = self.error.get("exception")
        name = str(exception.get("type") or "") if isinstance(exception, dict) else ""
        return name.removeprefix("builtins.")

    def visible_result(self) -> Any:
        """Return the masked result without the traceback and without values that the error repeats."""
        seen = self.visible("result")
        exception = self.error.get("exception")
        if not isinstance(exception, dict) or not isinstance(seen, dict):
            return seen
        shown = {"traceback": self.traceback or None, "message": self.error.get("message")}
        left = {key: value for key, value in exception.items() if key not in shown or value != shown[key]}
        return seen | {"err": self.error | {"exception": left}}

    def _value(self, part: str) -> Any:
        if part not in self._values:
            self._values[part] = decode(getattr(self._task, PARTS[part], None))
        return self._values[part]


def _in_call_order(task_name: str, kwargs: Any) -> Any:
    """Return keyword arguments in the order of the task's parameters; unknown ones, and those of ``**kwargs``, last.

    PostgreSQL's ``jsonb`` sorts the keys of an object by their length.
    """
    if not isinstance(kwargs, dict) or len(kwargs) < 2:
        return kwargs
    try:
        task = registry.find_task(task_name)
    except NotRegistered:
        return kwargs
    own = [name for name in parameters_of(task.func, task.takes_context).own if name in kwargs]
    return {name: kwargs[name] for name in own} | kwargs


def error_data(result: Any, mask: Mask) -> Any:
    """Return the data of the error in a result, masked if any name that leads to it is; None if it has none."""
    value = result
    for name, key in (("result", "err"), ("err", "data")):
        if mask.apply(name, value) is not value:
            return MASKED
        value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            return None
    return mask.apply("data", value)


class _Unreadable(str):
    """A message that replaces a value that can't be decoded."""

    __slots__ = ()


def decode(text: str | None) -> Any:
    """Decode a column that was read as text; return a message if it can't be decoded."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        # The text itself is not shown, because it can't be masked.
        return _Unreadable(_("This value can't be read: %s. It is not shown.") % type(error).__name__)


def contents_of(task: Task) -> Contents:
    """Return the contents of a task, cached on the instance."""
    if not isinstance(contents := task.__dict__.get("_contents"), Contents):
        contents = task.__dict__["_contents"] = Contents(task)
    return contents
