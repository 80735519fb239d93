"""The news that tasks, or workflows, have ended: how it is written, who tells it, and for how long."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Protocol
from uuid import UUID

from . import postgres
from .on_commit import on_commit_robust

#: Seconds for which a worker tells of ends after somebody has said that he waits. Who still waits says so more often.
SUBSCRIPTION_TTL: Final = 10.0
RENEW_INTERVAL: Final = 4.0

#: What has ended goes by the last digits of its id: who mistakes another one for it looks once in vain.
_KEY_LENGTH: Final = 8

#: Ends in one notification; PostgreSQL takes 8,000 bytes.
_KEYS_PER_PAYLOAD: Final = 900


def short_key(key: UUID) -> str:
    """Return what a task or a workflow goes by."""
    return key.hex[-_KEY_LENGTH:]


def dumps(keys: Sequence[UUID]) -> list[str]:
    """Return the payloads that tell of these ends."""
    marks = [short_key(key) for key in keys]
    return ["".join(marks[start : start + _KEYS_PER_PAYLOAD]) for start in range(0, len(marks), _KEYS_PER_PAYLOAD)]


def loads(payload: str) -> set[str]:
    """Return the marks in a payload."""
    return {payload[start : start + _KEY_LENGTH] for start in range(0, len(payload), _KEY_LENGTH)}


class CompletionSink(Protocol):
    """Tells of ends as long as somebody wants to know."""

    def publish(self, keys: Iterable[UUID]) -> None:
        """These have ended, for good and in the table."""


_sinks: Final[dict[tuple[str, int], CompletionSink]] = {}


def register_sink(alias: str, teller: CompletionSink) -> None:
    """From now on ``teller`` tells what ends in this process, of which a fork is another one."""
    _sinks[alias, os.getpid()] = teller


def unregister_sink(alias: str, teller: CompletionSink) -> None:
    """From now on it does not."""
    if _sinks.get((alias, os.getpid())) is teller:
        del _sinks[alias, os.getpid()]


def notify_after_commit(alias: str, keys: Collection[UUID]) -> None:
    """Tell those who wait, once the current transaction has committed, that there is nothing more to wait for.

    In a worker its teller does so, and nothing is said while nobody waits. Any other process, where an end is a rare
    thing, says it. A failure is logged and no more: who waits looks for himself too.
    """
    if keys and postgres.can_listen(alias):
        on_commit_robust(alias, _notify, alias, list(keys))


def _notify(alias: str, keys: Sequence[UUID]) -> None:
    if (teller := _sinks.get((alias, os.getpid()))) is not None:
        teller.publish(keys)
    else:
        postgres.say(alias, postgres.ENDED, dumps(keys))
