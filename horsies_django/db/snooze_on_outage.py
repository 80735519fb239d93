"""Lets tasks that have not begun wait while the database is unavailable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import Error

from ..core.exceptions import Snooze
from .errors import is_outage

#: Seconds after which a task is tried again whose body could not begin because of an outage.
OUTAGE_SNOOZE: Final = 1.0


@contextmanager
def snooze_on_outage() -> Iterator[None]:
    """Replace an error of the block that reports an outage by a snooze."""
    try:
        yield
    except Error as error:
        if not is_outage(error):
            raise
        raise Snooze(OUTAGE_SNOOZE) from error
