"""Mask sensitive values by their names, as Django's error reports do.

The project's error report filter and the task's ``sensitive`` option decide. Stored rows are unchanged: masks apply to
what people read, such as pages, messages, keys and ``repr()``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import zip_longest
from typing import Any, Final, TypeAlias
from uuid import UUID

from django.utils.crypto import salted_hmac
from django.views.debug import SafeExceptionReporterFilter, get_default_exception_reporter_filter

from .compat import FrameworkTask
from .exceptions import NotRegistered
from .parameters import parameters_of
from .registry import registry

logger = logging.getLogger("horsies_django.masking")

#: Names of arguments and of keys in results, or ``(name, value) -> bool``: values that are hidden from viewers.
Sensitive: TypeAlias = Collection[str] | Callable[[str, Any], bool]

#: The text shown in place of a sensitive value.
MASKED: Final[str] = SafeExceptionReporterFilter.cleansed_substitute

#: The maximum depth of nesting; deeper values are masked.
_DEEPEST: Final = 50

#: Maximum characters of a value in a message.
_QUOTED: Final = 80

#: Types whose repr() contains only the value itself.
_SIMPLE: Final = (str, bytes, int, float, complex, Decimal, UUID, date, time, timedelta, type(None))


class Mask:
    """Masks values by their names. Never raises: if the filter fails for a value, the value is masked.

    >>> Mask().apply("password", "x")
    '********************'
    >>> Mask(sensitive={"iban"}).apply("iban", "DE02…")
    '********************'
    """

    def __init__(self, *, sensitive: Sensitive = (), names: Sequence[str] = (), rest: str = "") -> None:
        self._sensitive = sensitive
        self._names = names
        self._rest = rest
        self._has_logged = False

    def apply(self, name: str, value: Any) -> Any:
        """Return the value or its mask. Does not look inside containers."""
        try:
            return MASKED if self._is_sensitive(name, value) else _filtered(name, value)
        except Exception:  # raised by the project's filter
            if not self._has_logged:
                logger.exception("error report filter failed name=%r: the value is masked", name)
                self._has_logged = True
            return MASKED

    def apply_to_args(self, args: Any) -> Any:
        """Mask positional arguments by the names of the function's parameters.

        Damaged rows may hold another type; see :meth:`apply_to_kwargs`.
        """
        if not isinstance(args, list):
            return self.apply_to_kwargs(args)
        names = self._names[: len(args)]
        return [self.apply(name, value) for name, value in zip_longest(names, args, fillvalue=self._rest)]

    def apply_to_kwargs(self, kwargs: Any) -> Any:
        """Return keyword arguments (their values are masked when written). Mask any other type whole."""
        return kwargs if kwargs is None or isinstance(kwargs, dict) else MASKED

    def name_at(self, position: int) -> str:
        """Return the name by which a positional argument is masked; an empty text if it has none."""
        return self._names[position] if position < len(self._names) else self._rest

    def position_of(self, name: str) -> int | None:
        """Return the position of the positional parameter of that name; None if there is none."""
        return list(self._names).index(name) if name in self._names else None

    def apply_deep(self, name: str, value: Any) -> Any:
        """Return a copy of a value with everything sensitive in its lists and dicts masked."""
        return self._cleansed(name, value, _DEEPEST)

    def apply_to_output(self, data: Any, *, is_log: bool) -> Any:
        """Return a chunk of output with everything sensitive masked.

        If the task has ``sensitive``, all but a dict is masked whole: it has no names by which to mask parts of it.
        """
        if self._sensitive and not isinstance(data, dict):
            return MASKED
        return {**data, "message": MASKED} if self._sensitive and is_log else self.apply_deep("output", data)

    def quote(self, name: str, value: Any) -> str:
        """Return a value for an error message: its masked repr, shortened, and its type."""
        text = _repr(self.apply_deep(name, value))
        return f"{text if len(text) <= _QUOTED else text[:_QUOTED] + '…'} ({type(value).__name__})"

    def is_revealed_by(self, key: str | Callable[..., Any], values: Mapping[str, Any]) -> bool:
        """Whether a key made from these arguments (by a format string or a callable) may reveal a masked value."""
        seen = {name: self.apply_deep(name, value) for name, value in values.items()}
        if all(seen[name] is value for name, value in values.items()):
            return False
        if callable(key):  # it may use any of them
            return True
        try:
            return key.format_map(seen) != key.format_map(values)
        except Exception:  # noqa: BLE001  # a mask is a text, which the format's specs may reject
            return True

    def _cleansed(self, name: str | None, value: Any, levels: int) -> Any:
        """Return a masked copy, or the value itself if nothing in it is sensitive."""
        if name is not None and (seen := self.apply(name, value)) is not value:
            return seen
        if not isinstance(value, dict | list | tuple):
            return value
        if levels == 0:
            return MASKED
        members = value.items() if isinstance(value, dict) else ((None, member) for member in value)
        cleansed = [
            (key, self._cleansed(None if key is None else str(key), member, levels - 1)) for key, member in members
        ]
        originals = value.values() if isinstance(value, dict) else value
        if all(member is before for (_, member), before in zip(cleansed, originals, strict=True)):
            return value
        return dict(cleansed) if isinstance(value, dict) else [member for _, member in cleansed]

    def _is_sensitive(self, name: str, value: Any) -> bool:
        if callable(self._sensitive):
            return bool(self._sensitive(name, value))
        return name in self._sensitive


class AnyMask(Mask):
    """Applies several masks in turn; without any, judges by names alone."""

    def __init__(self, masks: Sequence[Mask]) -> None:
        super().__init__()
        self._masks = masks

    def apply(self, name: str, value: Any) -> Any:
        """See :meth:`Mask.apply`."""
        for mask in self._masks:
            value = mask.apply(name, value)
        return value if self._masks else super().apply(name, value)


class HideAll(Mask):
    """Masks everything, for tasks that can't be found: what is sensitive in them is unknown."""

    def apply(self, name: str, value: Any) -> Any:
        """Return the mask."""
        return MASKED

    def apply_to_args(self, args: Any) -> Any:
        """Return the mask."""
        return MASKED

    def apply_to_kwargs(self, kwargs: Any) -> Any:
        """Return the mask: the names may be sensitive too."""
        return MASKED


#: Judges by names alone, for values that belong to no task.
BY_NAME: Final = Mask()


def keyed_hash(purpose: str, text: str) -> str:
    """Return a hash of a text for a visible key, the same in every process of the project.

    It uses SECRET_KEY, so that readers can't guess short texts by trial.
    """
    return str(salted_hmac(f"horsies_django.{purpose}", text, algorithm="sha256").hexdigest()[:48])


def _repr(value: Any) -> str:
    """Return the repr of a masked value; for other objects only the type, as their repr may contain anything."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_repr(key)}: {_repr(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list | tuple):
        inner = ", ".join(map(_repr, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if value is MASKED:
        return str(value)
    return repr(value) if isinstance(value, _SIMPLE) else f"<{type(value).__name__}>"


def _filtered(name: str, value: Any) -> Any:
    """Apply the project's filter; to a container by its name only, as its members are filtered one by one."""
    reporter_filter = get_default_exception_reporter_filter()
    if not isinstance(value, dict | list):
        return reporter_filter.cleanse_setting(name, value)
    empty: Any = type(value)()
    cleansed = reporter_filter.cleanse_setting(name, empty)
    return value if cleansed == empty else cleansed


def mask_of(task_name: str) -> Mask:
    """Return the mask of the task of that name; one that hides everything if no such task is registered."""
    try:
        return mask_of_task(registry.find_task(task_name))
    except NotRegistered as error:
        logger.debug("mask not found task=%r error=%r: everything is hidden", task_name, error)
        return HideAll()


def mask_of_task(task: FrameworkTask[..., Any]) -> Mask:
    """Return the mask of a task."""
    parameters = parameters_of(task.func, task.takes_context)
    every = parameters.signature.parameters.values()
    rest = next((parameter.name for parameter in every if parameter.kind is parameter.VAR_POSITIONAL), "")
    return Mask(sensitive=getattr(task, "sensitive", ()), names=parameters.positional, rest=rest)
