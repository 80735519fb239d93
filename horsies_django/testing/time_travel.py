"""Moves the package's clock, so that what is due later comes due at once."""

from __future__ import annotations

from contextlib import ContextDecorator
from datetime import datetime, timedelta
from typing import Any, Self

from django.utils import timezone

from ..core.backends import all_backends
from ..db import inserts, now
from ..db.clock import database_now
from ..enqueue import call_builder
from ..models import queue_scan


class _Travel(ContextDecorator):
    """Moves the clock during a block or a decorated function."""

    def __init__(self, distance: timedelta | datetime) -> None:
        self._distance = distance
        self._before: list[timedelta] = []

    def __enter__(self) -> Self:
        """Move the clock."""
        self._before.append(now.offset())
        _move_to(now.offset() + self._resolved())
        return self

    def __exit__(self, *exception: object) -> None:
        """Move the clock back."""
        _move_to(self._before.pop())

    def _resolved(self) -> timedelta:
        if isinstance(self._distance, timedelta):
            return self._distance
        databases = {backend.config.database for backend in all_backends()}
        return self._distance - database_now(min(databases))


def travel(distance: timedelta | None = None, /, **duration: float) -> _Travel:
    """Move the package's clock by a timedelta, or by its keywords.

    Use it in a ``with`` statement (``with travel(days=7): drain()``), as a decorator, or with
    ``TestCase.enterContext()``. Inside the block the clock goes on from there, and blocks add up. Retries, scheduled
    tasks, schedules, sleeps of workflows, deadlines, retention, rates and unique periods come due, for what runs in
    this process. Only times that this package reads or writes move: ``timezone.now()`` does not, nor does the clock of
    another process, such as a worker.

    Raises TypeError without a duration, and RuntimeError outside of a test run.
    """
    if (distance is None) == (not duration):
        raise TypeError("travel() needs a timedelta or its keywords, such as travel(days=7).")
    return _Travel(timedelta(**duration) if distance is None else distance)


def travel_to(when: datetime) -> _Travel:
    """Move the package's clock to a time. See :func:`travel`.

    Raises ValueError for a naive datetime.
    """
    if timezone.is_naive(when):
        raise ValueError(f"travel_to() got {when!r}; allowed: an aware datetime.")
    return _Travel(when)


def _move_to(offset: timedelta) -> None:
    now.move_to(offset)
    # What was compiled before has the former now.
    caches: list[Any] = [inserts.columns_with_defaults, queue_scan.compile_scan]
    for cached in caches:
        cached.cache_clear()
    call_builder.forget_builders()
