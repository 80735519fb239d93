"""The position of a worker in a queue: a claim can go on from where the last one ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ...db.claim_expressions import CURSOR_ID, CURSOR_PRIORITY, CURSOR_TIME, LIMIT, QUEUE
from ...db.statements import Statement
from ..claims import ClaimedTask

#: Claims continue from the mark for this many times the duration of a claim from the first row.
_WORTH: Final = 10

#: The longest time, in seconds, for which claims continue from the mark.
_LONGEST: Final = 1.0

Execute = Callable[[Statement, dict[str, Any]], list[ClaimedTask]]


class ClaimCursor:
    """Executes the claim from the first row, or from the mark while that is faster.

    While an old transaction blocks vacuum, a claim from the first row walks over the index entries of all tasks that
    were claimed before. So the cursor spends at most a tenth of the time on such claims. A task that sorts before the
    mark, because of its priority or because its transaction committed late, then waits some ten milliseconds more.
    """

    def __init__(self, first: Statement, after_mark: Statement | None = None) -> None:
        self._first = first
        self._after_mark = after_mark
        self._mark: ClaimedTask | None = None
        self._mark_until = float("-inf")

    def claim(self, execute: Execute, bound: dict[str, Any], stored: dict[str, Any]) -> list[ClaimedTask]:
        """Claim as many tasks as there is room for.

        ``bound`` are the parameters. A second statement, if one is needed, gets those of ``stored`` over them: the
        first one has stored the results.
        """
        claims: list[ClaimedTask] = []
        room = bound[LIMIT.name]
        is_worth_it = room and time.monotonic() < self._mark_until
        if self._after_mark and is_worth_it and (mark := self._mark) and mark.queue_name == bound[QUEUE.name]:
            position = {
                CURSOR_PRIORITY.name: mark.priority,
                CURSOR_TIME.name: mark.enqueued_at,
                CURSOR_ID.name: mark.task_id,
            }
            claims = execute(self._after_mark, bound | position)
            if len(claims) == room:
                self._mark = claims[-1]
                return claims
            bound = bound | stored | {LIMIT.name: room - len(claims)}
        began = time.monotonic()
        claims += execute(self._first, bound)
        now = time.monotonic()
        if room:
            self._mark_until = now + min((now - began) * _WORTH, _LONGEST)
            self._mark = claims[-1] if len(claims) == room else None
        return claims
