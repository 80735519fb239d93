"""Patience: a database that is away for a while costs a worker that while, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from django.db import Error, InterfaceError, OperationalError, connections

from ..models.claims import ClaimLost

logger = logging.getLogger("horsies_django.worker")

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


class Patience:
    """Does things with a database. ``wait`` is how to spend some seconds, ``doubt`` what to do about a lost claim.

    ``longest_pause`` are the seconds between two tries at most: one beat interval, so that after an outage a worker
    beats before a reaper may take it for dead.
    """

    def __init__(
        self, database: str, wait: Callable[[float], None], doubt: Callable[[], None], longest_pause: float
    ) -> None:
        self._database = database
        self._wait = wait
        self._doubt = doubt
        self._longest_pause = min(longest_pause, _LONGEST_PAUSE)
        self._pause = _FIRST_PAUSE

    def __call__(self, action: Callable[[], T]) -> T | None:
        """Do something and return what it gives; None, after a while, if the database is not to be had.

        Inside a transaction of the caller's, which is lost then, raises the error.
        """
        try:
            done = action()
        except ClaimLost:
            self._doubt()
            return None
        except Error as error:
            if connections[self._database].in_atomic_block:
                raise
            expected = isinstance(error, OperationalError | InterfaceError)
            logger.warning(
                "database not to be had, next try in %.1f s: %s",
                self._pause,
                error,
                exc_info=None if expected else error,
            )
            connections[self._database].close()
            self._wait(self._pause)
            self._pause = min(self._pause * 2, self._longest_pause)
            return None
        self._pause = _FIRST_PAUSE
        return done
