"""The news that tasks, or workflows, have ended: how it is written, who tells it, and for how long."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Protocol
from uuid import UUID

from . import postgres
from .on_commit import on_commit_robust

#: Seconds for which a worker tells of ends after somebody has said that he waits. Who still waits says so more often.
TOLD_FOR: Final = 10.0
SAID_EVERY: Final = 4.0

#: What has ended goes by the last digits of its id: who mistakes another one for it looks once in vain.
_DIGITS: Final = 8

#: Ends in one notification; PostgreSQL takes 8,000 bytes.
_ENDS: Final = 900


def mark(key: UUID) -> str:
    """Return what a task or a workflow goes by."""
    return key.hex[-_DIGITS:]


def dumps(keys: Sequence[UUID]) -> list[str]:
    """Return the payloads that tell of these ends."""
    marks = [mark(key) for key in keys]
    return ["".join(marks[start : start + _ENDS]) for start in range(0, len(marks), _ENDS)]


def loads(payload: str) -> set[str]:
    """Return the marks in a payload."""
    return {payload[start : start + _DIGITS] for start in range(0, len(payload), _DIGITS)}


class Teller(Protocol):
    """Tells of ends as long as somebody wants to know."""

    def ended(self, keys: Iterable[UUID]) -> None:
        """These have ended, for good and in the table."""


_tellers: Final[dict[tuple[str, int], Teller]] = {}


def appoint(alias: str, teller: Teller) -> None:
    """From now on ``teller`` tells what ends in this process, of which a fork is another one."""
    _tellers[alias, os.getpid()] = teller


def dismiss(alias: str, teller: Teller) -> None:
    """From now on it does not."""
    if _tellers.get((alias, os.getpid())) is teller:
        del _tellers[alias, os.getpid()]


def tell_after_commit(alias: str, keys: Collection[UUID]) -> None:
    """Tell those who wait, once the current transaction has committed, that there is nothing more to wait for.

    In a worker its teller does so, and nothing is said while nobody waits. Any other process, where an end is a rare
    thing, says it. A failure is logged and no more: who waits looks for himself too.
    """
    if keys and postgres.can_listen(alias):
        on_commit_robust(alias, _tell, alias, list(keys))


def _tell(alias: str, keys: Sequence[UUID]) -> None:
    if (teller := _tellers.get((alias, os.getpid()))) is not None:
        teller.ended(keys)
    else:
        postgres.say(alias, postgres.ENDED, dumps(keys))
