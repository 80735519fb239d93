"""While the database is away, what has not begun waits until it is back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import Error

from ..core.exceptions import Snooze
from .errors import is_outage

#: Seconds that a task waits whose body could not begin, for the database was not to be had.
OUTAGE_SNOOZE: Final = 1.0


@contextmanager
def snooze_on_outage() -> Iterator[None]:
    """Snooze instead of an error of the block's that says that the database is not to be had."""
    try:
        yield
    except Error as error:
        if not is_outage(error):
            raise
        raise Snooze(OUTAGE_SNOOZE) from error
