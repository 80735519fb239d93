"""``Gather``: which calls of a task form a group, and when the group is due."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from .option_parsers import LONGEST_DURATION
from .serialization import clean_text

#: The maximum length of a key, in characters.
KEY_LENGTH: Final = 255

#: Maximum calls in one group.
MAX_GROUP_SIZE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Gather:
    """Groups calls of a task: one run gets all calls with the same key, as a list.

    ``by`` is a format string over a call's keyword arguments, or a callable that takes them by name and returns a text,
    a number or a UUID. A group closes and is due as soon as it has ``max_size`` calls; it is due ``max_delay`` after
    its first call, or ``quiet`` after its latest, whichever comes first. Durations are seconds or a timedelta; one
    of the two may be None, for no limit. Raises ValueError naming every bad field.

    >>> Gather("customer-{customer_id}", max_size=100, max_delay=60, quiet=5).key({"customer_id": 7, "text": "hello"})
    'customer-7'
    """

    by: str | Callable[..., object]
    _: KW_ONLY
    max_size: int = 100
    max_delay: float | timedelta | None = 60.0
    quiet: float | timedelta | None = None

    def __post_init__(self) -> None:
        """Convert durations to seconds. Raises ValueError naming every bad field."""
        if problems := list(self._problems()):
            raise ValueError("Gather: " + " ".join(problems))
        for name in ("max_delay", "quiet"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _seconds(value))

    @property
    def max_delay_seconds(self) -> float | None:
        """The seconds after its first call at which a group is due."""
        return _seconds(self.max_delay)

    @property
    def quiet_seconds(self) -> float | None:
        """The seconds after its latest call at which a group is due."""
        return _seconds(self.quiet)

    def key(self, call: Mapping[str, Any]) -> str:
        """Return the key of a call. Raises ValueError for a missing or invalid key."""
        if callable(self.by):
            value = self.by(**call)
        else:
            try:
                value = self.by.format(**call)
            except (LookupError, AttributeError) as error:
                names = ", ".join(sorted(call)) or "none"
                problem = f"{self.by!r} needs {error}, which is not among the arguments of the call: {names}."
                raise ValueError(f"Gather: by is {problem}") from None
        key = str(value) if isinstance(value, str | int | UUID) else ""
        if not key.strip() or len(key) > KEY_LENGTH or key != clean_text(key):
            # The message omits the key, which may contain sensitive arguments.
            what = "blank" if isinstance(value, str) and not key.strip() else f"a {type(value).__name__}"
            what += f" of {len(key)} characters" if key.strip() else ""
            raise ValueError(f"Gather: the key of a call is {what}; allowed: a text of 1 to {KEY_LENGTH} characters.")
        return key

    def _problems(self) -> Iterator[str]:
        if not (callable(self.by) or (isinstance(self.by, str) and self.by.strip() and _is_format(self.by))):
            yield f"by is {self.by!r}; allowed: a format string, as 'customer-{{customer_id}}', or a callable."
        if type(self.max_size) is not int or not 1 <= self.max_size <= MAX_GROUP_SIZE:
            yield f"max_size is {self.max_size!r}; allowed: a whole number from 1 to {MAX_GROUP_SIZE:,}."
        for name in ("max_delay", "quiet"):
            value = getattr(self, name)
            if value is not None and _seconds(value) is None:
                yield f"{name} is {value!r}; allowed: seconds above 0, a timedelta, or None."
        if self.max_delay is None and self.quiet is None:
            yield "max_delay and quiet are None, so a group might wait for ever; allowed: at least one of them."


def _is_format(text: str) -> bool:
    try:
        return all(name is None or name.strip() for _, name, _, _ in string.Formatter().parse(text))
    except ValueError:
        return False


def _seconds(value: object) -> float | None:
    """Return a duration in seconds; None if it is invalid."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_DURATION:
        return None
    return float(seconds)
