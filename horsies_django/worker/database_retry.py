"""Retries of a worker's database actions: an outage delays the worker and has no other effect."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, TypeVar

from django.db import Error, connections

from ..db.errors import is_outage, is_row_error, lacks_privilege
from ..models.claims import ClaimLost

logger = logging.getLogger("horsies_django.worker")

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.1
_MAX_PAUSE: Final = 5.0


class DatabaseRetry:
    """Runs actions on a database, with a pause after a failure.

    ``progress`` is entered during an action, and during ``fix_rows``. ``wait`` spends the seconds of a pause, and
    ``on_claim_lost`` handles a lost claim. ``longest_pause`` is the longest pause in seconds: one heartbeat interval,
    so that after an outage a worker sends a heartbeat before a reaper takes it for dead. ``fix_rows`` fails the rows
    that make a statement fail for others, and returns how many it has found; their error would come back with every
    attempt. ``on_privilege_lost`` handles a privilege that the role has lost.
    """

    def __init__(
        self,
        database: str,
        progress: AbstractContextManager[None],
        wait: Callable[[float], None],
        on_claim_lost: Callable[[], None],
        longest_pause: float,
        fix_rows: Callable[[], int] = lambda: 0,
        on_privilege_lost: Callable[[Error], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._progress = progress
        self._fix_rows = fix_rows
        self._on_privilege_lost = on_privilege_lost
        self._wait = wait
        self._on_claim_lost = on_claim_lost
        self._longest_pause = min(longest_pause, _MAX_PAUSE)
        self._pause = _FIRST_PAUSE

    def __call__(self, action: Callable[[], T]) -> T | None:
        """Run ``action`` and return what it returns; None, after a pause, if it failed.

        Raises the error inside a transaction of the caller, which is lost then, and an error that comes neither from
        the database nor from a row.
        """
        try:
            with self._progress:
                done = action()
        except ClaimLost:
            self._on_claim_lost()
            return None
        except Exception as error:
            if connections[self._database].in_atomic_block:
                raise
            if is_row_error(error) and self._has_fixed_rows():
                return None
            if not isinstance(error, Error):
                raise
            if lacks_privilege(error):
                self._on_privilege_lost(error)
            elif is_outage(error):
                logger.warning("database unavailable retry_in=%.1fs error=%s", self._pause, error)
            else:
                logger.exception("database refused a statement retry_in=%.1fs", self._pause)
            connections[self._database].close()
            self._wait(self._pause)
            self._pause = min(self._pause * 2, self._longest_pause)
            return None
        self._pause = _FIRST_PAUSE
        return done

    def _has_fixed_rows(self) -> bool:
        try:
            with self._progress:
                return self._fix_rows() > 0
        except Error:
            logger.warning("unreadable rows not isolated", exc_info=True)
            return False
