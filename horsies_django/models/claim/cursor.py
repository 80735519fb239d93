"""The course of a worker that claims again and again: it goes on from where its last claim has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ...db.claim_expressions import MARK_ID, MARK_PRIORITY, MARK_TIME, QUEUE, ROOM
from ...db.statements import Statement
from ..claims import ClaimedTask

#: How many times as long as a claim from the first row takes the claims after it go on from the mark.
_WORTH: Final = 10

#: Seconds for which they do at most.
_LONGEST: Final = 1.0

Execute = Callable[[Statement, dict[str, Any]], list[ClaimedTask]]


class ClaimCursor:
    """Says ``first``, or ``onward`` from the mark as long as that is worth it.

    A claim that begins with the first row walks over the index entries of all that was claimed before, as long as some
    old transaction keeps vacuum from removing them. So it is made no more often than costs a tenth of the time: a task
    that comes before the mark, for its priority or because its transaction took longer than those of its neighbours,
    waits some ten milliseconds more as a rule.
    """

    def __init__(self, first: Statement, onward: Statement | None = None) -> None:
        self._first = first
        self._onward = onward
        self._mark: ClaimedTask | None = None
        self._onward_until = float("-inf")

    def claim(self, say: Execute, given: dict[str, Any], done: dict[str, Any]) -> list[ClaimedTask]:
        """Claim as many as there is room for. ``done`` is given to a second statement, if there is one."""
        claims: list[ClaimedTask] = []
        room = given[ROOM.name]
        is_worth_it = room and time.monotonic() < self._onward_until
        if self._onward and is_worth_it and (mark := self._mark) and mark.queue_name == given[QUEUE.name]:
            position = {
                MARK_PRIORITY.name: mark.priority,
                MARK_TIME.name: mark.enqueued_at,
                MARK_ID.name: mark.task_id,
            }
            claims = say(self._onward, given | position)
            if len(claims) == room:
                self._mark = claims[-1]
                return claims
            given = given | done | {ROOM.name: room - len(claims)}
        began = time.monotonic()
        claims += say(self._first, given)
        now = time.monotonic()
        if room:
            self._onward_until = now + min((now - began) * _WORTH, _LONGEST)
            self._mark = claims[-1] if len(claims) == room else None
        return claims
