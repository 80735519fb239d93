"""What of a value people who look are not to see, by its name, as in Django's own error reports.

The project's filter of error reports judges every name, and the task's own ``sensitive`` as well. Rows stay as they
are: this is for the eye, and for what is made of values for people to read: messages, keys, ``repr()``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import zip_longest
from typing import Any, Final
from uuid import UUID

from django.utils.crypto import salted_hmac
from django.views.debug import SafeExceptionReporterFilter, get_default_exception_reporter_filter

from .task_options import Sensitive

logger = logging.getLogger("horsies_django.masking")

#: What stands for a value that is not to be seen.
MASKED: Final[str] = SafeExceptionReporterFilter.cleansed_substitute

#: Levels below which a value is not looked into: what is there is masked.
_DEEPEST: Final = 50

#: Characters of a value that a message quotes.
_QUOTED: Final = 80

#: Types whose repr() has nothing in it but the value itself.
_SIMPLE: Final = (str, bytes, int, float, complex, Decimal, UUID, date, time, timedelta, type(None))


class Mask:
    """Says of each value, by its name, what may be seen of it. Never raises: what can't be judged is masked.

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
        """Return what may be seen of a value: itself, or what stands for it. What is in it is not looked at."""
        try:
            return MASKED if self._is_sensitive(name, value) else _filtered(name, value)
        except Exception:  # of a project's own code
            if not self._has_logged:
                logger.exception("whether %r is sensitive can't be known: it is masked", name)
                self._has_logged = True
            return MASKED

    def apply_to_args(self, args: Any) -> Any:
        """Return what may be seen of positional arguments, by the names that the function has for them.

        Of a damaged row's only a dict has names that can be judged.
        """
        if not isinstance(args, list):
            return self.apply_to_kwargs(args)
        names = self._names[: len(args)]
        return [self.apply(name, value) for name, value in zip_longest(names, args, fillvalue=self._rest)]

    def apply_to_kwargs(self, kwargs: Any) -> Any:
        """Return what may be seen of arguments by name; their keys are the names that are judged as it is written.

        Nothing else of a damaged row has names.
        """
        return kwargs if kwargs is None or isinstance(kwargs, dict) else MASKED

    def apply_deep(self, name: str, value: Any) -> Any:
        """Return a copy of a value without what is sensitive, however deep it is in lists and dicts."""
        return self._cleansed(name, value, _DEEPEST)

    def quote(self, name: str, value: Any) -> str:
        """Return a value as an error message may quote it: its repr, masked and cut, and its type."""
        text = _repr(self.apply_deep(name, value))
        return f"{text if len(text) <= _QUOTED else text[:_QUOTED] + '…'} ({type(value).__name__})"

    def is_revealed_by(self, key: str | Callable[..., Any], values: Mapping[str, Any]) -> bool:
        """Whether a key that is made of these arguments, a format text or a callable, may tell what is masked."""
        seen = {name: self.apply_deep(name, value) for name, value in values.items()}
        if all(seen[name] is value for name, value in values.items()):
            return False
        if callable(key):  # what it uses can't be known
            return True
        try:
            return key.format_map(seen) != key.format_map(values)
        except Exception:  # noqa: BLE001  # a mask need not fit the format's specs
            return True

    def _cleansed(self, name: str | None, value: Any, levels: int) -> Any:
        """A copy, or the value itself if nothing in it is sensitive."""
        if name is not None and (seen := self.apply(name, value)) is not value:
            return seen
        if not isinstance(value, dict | list | tuple):
            return value
        if levels == 0:
            return MASKED
        members = value.items() if isinstance(value, dict) else ((None, member) for member in value)
        cleansed = [(key, self._cleansed(None if key is None else str(key), one, levels - 1)) for key, one in members]
        given = value.values() if isinstance(value, dict) else value
        if all(one is before for (_, one), before in zip(cleansed, given, strict=True)):
            return value
        return dict(cleansed) if isinstance(value, dict) else [one for _, one in cleansed]

    def _is_sensitive(self, name: str, value: Any) -> bool:
        if callable(self._sensitive):
            return bool(self._sensitive(name, value))
        return name in self._sensitive


class AnyMask(Mask):
    """Hides what any of some masks hides; with none of them it goes by names alone."""

    def __init__(self, masks: Sequence[Mask]) -> None:
        super().__init__()
        self._masks = masks

    def apply(self, name: str, value: Any) -> Any:
        """See :meth:`Mask.apply`."""
        for mask in self._masks:
            value = mask.apply(name, value)
        return value if self._masks else super().apply(name, value)


class HideAll(Mask):
    """Hides everything: of a task that can't be found, nobody can say what is sensitive."""

    def apply(self, name: str, value: Any) -> Any:
        """Return what stands for a value that is not to be seen."""
        return MASKED

    def apply_to_args(self, args: Any) -> Any:
        """Return what stands for them."""
        return MASKED

    def apply_to_kwargs(self, kwargs: Any) -> Any:
        """Return what stands for them: their names are as unknown as their values."""
        return MASKED


#: Goes by names alone, for what belongs to no task.
BY_NAME: Final = Mask()


def keyed_hash(purpose: str, text: str) -> str:
    """Return what stands for a text in a key that people may read, the same in every process of the project.

    It is made with SECRET_KEY, so who reads it can't try out short texts until one fits.
    """
    return str(salted_hmac(f"horsies_django.{purpose}", text, algorithm="sha256").hexdigest()[:48])


def _repr(value: Any) -> str:
    """The repr of a masked value; of an object of the project's, whose own may tell anything, its type alone."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_repr(key)}: {_repr(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        inner = ", ".join(map(_repr, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if value is MASKED:
        return str(value)
    return repr(value) if isinstance(value, _SIMPLE) else f"<{type(value).__name__}>"


def _filtered(name: str, value: Any) -> Any:
    """Ask the project's filter; about a container by its name alone, for what is in it is judged as it is shown."""
    judge = get_default_exception_reporter_filter()
    if not isinstance(value, dict | list):
        return judge.cleanse_setting(name, value)
    empty: Any = type(value)()
    cleansed = judge.cleanse_setting(name, empty)
    return value if cleansed == empty else cleansed
