"""While the database is away, what has not begun waits until it is back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import InterfaceError, OperationalError

from .exceptions import Snooze

#: Seconds that a task waits whose body could not begin, for the database was not to be had.
UNTIL_IT_IS_BACK: Final = 1.0


@contextmanager
def waiting_for_database() -> Iterator[None]:
    """Snooze instead of an error of the block's that says that the database is not to be had."""
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        raise Snooze(UNTIL_IT_IS_BACK) from error
