"""The position of a worker in a queue: a claim can go on from where the last one ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from ...db.claim_expressions import CURSOR_ID, CURSOR_PRIORITY, CURSOR_TIME, LIMIT, QUEUE
from ...db.statements import Statement
from ..claims import ClaimedTask

#: Claims continue from the cursor for this many times the duration of a claim from the first row.
_DURATION_FACTOR: Final = 10

#: The longest time, in seconds, for which claims continue from the cursor.
_MAX_DURATION: Final = 1.0

Execute = Callable[[Statement, dict[str, Any]], list[ClaimedTask]]


class ClaimCursor:
    """Executes the claim from the first row, or from the cursor while that is faster.

    While an old transaction blocks vacuum, a claim from the first row walks over the index entries of all tasks that
    were claimed before. So such claims take at most a tenth of the time. A task that sorts before the cursor, because
    of its priority or because its transaction committed late, then waits some ten milliseconds more.
    """

    def __init__(self, first: Statement, compile_after_cursor: Callable[[], Statement] | None = None) -> None:
        self._first = first
        self._compile_after_cursor = compile_after_cursor
        self._position: ClaimedTask | None = None
        self._valid_until = float("-inf")

    def claim(self, execute: Execute, bound: dict[str, Any], stored: dict[str, Any]) -> list[ClaimedTask]:
        """Claim as many tasks as there is room for.

        ``bound`` are the parameters. A second statement, if one is needed, gets those of ``stored`` over them: the
        first one has stored the results.
        """
        claims: list[ClaimedTask] = []
        room = bound[LIMIT.name]
        is_cursor_valid = self._compile_after_cursor and room and time.monotonic() < self._valid_until
        if is_cursor_valid and (last := self._position) and last.queue_name == bound[QUEUE.name]:
            cursor = {
                CURSOR_PRIORITY.name: last.priority,
                CURSOR_TIME.name: last.enqueued_at,
                CURSOR_ID.name: last.task_id,
            }
            claims = execute(self._after_cursor, bound | cursor)
            if len(claims) == room:
                self._position = claims[-1]
                return claims
            bound = bound | stored | {LIMIT.name: room - len(claims)}
        began = time.monotonic()
        claims += execute(self._first, bound)
        now = time.monotonic()
        if room:
            self._valid_until = now + min((now - began) * _DURATION_FACTOR, _MAX_DURATION)
            self._position = claims[-1] if len(claims) == room else None
        return claims

    @cached_property
    def _after_cursor(self) -> Statement:
        """The claim from the cursor, compiled on first use because a worker that finds few tasks has no cursor."""
        assert self._compile_after_cursor is not None
        return self._compile_after_cursor()
