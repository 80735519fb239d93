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


def declared_terms(path: str | None) -> LimitTerms | None:
    """Return the limits that this process's code declares for the task of that name; None if it has no such task."""
    task = None if path is None else registry.tasks.get(path)
    return None if task is None else terms_of(task) if isinstance(task, Limited) else LimitTerms(None, None)
