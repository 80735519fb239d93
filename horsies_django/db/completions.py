"""Notifications that tasks or workflows have ended: their payloads, and the processes that send them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Protocol
from uuid import UUID

from . import notifications, postgres
from .on_commit import on_commit_robust

#: Seconds for which workers send completions after a process has subscribed. A process that still waits renews its
#: subscription more often.
SUBSCRIPTION_TTL: Final = 10.0
RENEW_INTERVAL: Final = 4.0

#: A completion is sent as the last digits of the id. A waiter that mistakes another id for its own polls once in vain.
_KEY_LENGTH: Final = 8

#: Completions in one notification; PostgreSQL allows 8,000 bytes.
_KEYS_PER_PAYLOAD: Final = 900


def short_key(key: UUID) -> str:
    """Return the key under which the completion of a task or a workflow is sent."""
    return key.hex[-_KEY_LENGTH:]


def dumps(keys: Sequence[UUID]) -> list[str]:
    """Return the payloads that announce these completions."""
    short_keys = [short_key(key) for key in keys]
    return [
        "".join(short_keys[start : start + _KEYS_PER_PAYLOAD]) for start in range(0, len(short_keys), _KEYS_PER_PAYLOAD)
    ]


def loads(payload: str) -> set[str]:
    """Return the keys in a payload."""
    return {payload[start : start + _KEY_LENGTH] for start in range(0, len(payload), _KEY_LENGTH)}


class CompletionSink(Protocol):
    """Sends completions while a process has subscribed to them."""

    def publish(self, keys: Iterable[UUID]) -> None:
        """Send the completions of these tasks or workflows, whose ends are committed."""


_sinks: Final[dict[tuple[str, int], CompletionSink]] = {}


def register_sink(alias: str, sink: CompletionSink) -> None:
    """Send the completions of this process through ``sink`` from now on. A fork is another process."""
    _sinks[alias, os.getpid()] = sink


def unregister_sink(alias: str, sink: CompletionSink) -> None:
    """Stop sending completions through ``sink``."""
    if _sinks.get((alias, os.getpid())) is sink:
        del _sinks[alias, os.getpid()]


def notify_after_commit(alias: str, keys: Collection[UUID]) -> None:
    """Notify waiters, once the current transaction has committed, that these tasks or workflows have ended.

    In a worker the registered sink does that, and sends nothing without subscribers. Other processes, where a task
    rarely ends, always send. A failure is only logged: waiters poll too.
    """
    if keys and postgres.can_listen(alias):
        on_commit_robust(alias, _notify, alias, list(keys))


def _notify(alias: str, keys: Sequence[UUID]) -> None:
    if (sink := _sinks.get((alias, os.getpid()))) is not None:
        sink.publish(keys)
    else:
        notifications.send(alias, dumps(keys), postgres.COMPLETIONS)
