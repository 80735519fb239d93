"""Patience: a database that is away for a while costs a worker that while, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from django.db import Error, connections

from ..db.errors import is_of_the_row, is_outage, lacks_privilege
from ..models.claims import ClaimLost

logger = logging.getLogger("horsies_django.worker")

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.1
_MAX_PAUSE: Final = 5.0


class DatabaseRetry:
    """Does things with a database.

    ``wait`` is how to spend some seconds, ``doubt`` what to do about a lost claim. ``longest_pause`` are the seconds
    between two tries at most: one beat interval, so that after an outage a worker beats before a reaper may take it for
    dead. ``isolate`` ends the rows that stop their neighbours, and returns how many it has found: an error that is no
    outage would come again and again. ``forbidden`` is what to do about a privilege that the role has lost.
    """

    def __init__(
        self,
        database: str,
        wait: Callable[[float], None],
        on_claim_lost: Callable[[], None],
        longest_pause: float,
        isolate: Callable[[], int] = lambda: 0,
        on_privilege_lost: Callable[[Error], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._isolate = isolate
        self._on_privilege_lost = on_privilege_lost
        self._wait = wait
        self._on_claim_lost = on_claim_lost
        self._longest_pause = min(longest_pause, _MAX_PAUSE)
        self._pause = _FIRST_PAUSE

    def __call__(self, action: Callable[[], T]) -> T | None:
        """Do something and return what it gives; None, after a while, if the database is not to be had.

        Inside a transaction of the caller's, which is lost then, raises the error; and so it does with one that is
        neither the database's nor a row's.
        """
        try:
            done = action()
        except ClaimLost:
            self._on_claim_lost()
            return None
        except Exception as error:
            if connections[self._database].in_atomic_block:
                raise
            if is_of_the_row(error) and self._has_isolated():
                return None
            if not isinstance(error, Error):
                raise
            if lacks_privilege(error):
                self._on_privilege_lost(error)
            elif is_outage(error):
                logger.warning("database not to be had, next try in %.1f s: %s", self._pause, error)
            else:
                logger.exception("database refused a statement, next try in %.1f s", self._pause)
            connections[self._database].close()
            self._wait(self._pause)
            self._pause = min(self._pause * 2, self._longest_pause)
            return None
        self._pause = _FIRST_PAUSE
        return done

    def _has_isolated(self) -> bool:
        try:
            return self._isolate() > 0
        except Error:
            logger.warning("rows that can't be read can't be looked for", exc_info=True)
            return False
