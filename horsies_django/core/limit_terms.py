"""The limits that a task declares: how many of its calls run at once, and how many start per period."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol, runtime_checkable

from .registry import registry

#: The maximum length of a limit key with its scope, in characters.
LENGTH: Final = 255


class LimitTerms(NamedTuple):
    """The limits of one task."""

    max_concurrency: int | None
    rate: str | None

    def __bool__(self) -> bool:
        """Whether they limit anything."""
        return self.max_concurrency is not None or self.rate is not None


@runtime_checkable
class Limited(Protocol):
    """A task that can declare limits."""

    @property
    def max_concurrency(self) -> int | None:
        """The maximum number of calls that run at once."""

    @property
    def rate_limit(self) -> str | None:
        """The maximum number of calls that start per period, such as ``"100/m"``."""


def terms_of(task: Limited) -> LimitTerms:
    """Return the limits that a task declares."""
    return LimitTerms(task.max_concurrency, task.rate_limit)


def declared_terms(path: str) -> LimitTerms:
    """Return the limits of the registered task of that name; no limits for an unknown one, whose calls only fail."""
    found = registry.tasks.get(path)
    return terms_of(found) if isinstance(found, Limited) else LimitTerms(None, None)
