"""The listener: wakes the pump when somebody sends a task, and tells those who wait of the ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from django.db import Error

from ..db import completions, postgres
from ..db.notifications import MAX_NAME_LENGTH, REVOKED, SLOT_FREED, STOP_REQUESTED, SlotFreed, TaskReady
from .completion_notifier import CompletionNotifier
from .config import WorkerConfig
from .inbox import Command, Inbox, InboxItem

logger = logging.getLogger("horsies_django.worker")

#: Hints in a second, and at once after a pause. Each costs a statement at most; what is beyond is looked for together.
RATE: Final = 200.0
BURST: Final = 100.0

#: Seconds after which the worker looks for what it was not told of.
POLL_DELAY: Final = 0.01


class Listener:
    """LISTENs on the pump's own connection, in its thread. While it can't, ``alive`` is False and the pump polls.

    From the word of a sender to the claim there is so one process to be woken here and one of the server, and each of
    them is the one that claims. On an idle machine it is those wakes that take the time.

    It believes only its ears: behind a pooler that shares connections between transactions LISTEN succeeds and nothing
    is ever heard. So the pump says the worker's name, now and then, and here it has to arrive.

    Any role that may connect may say anything. So what is heard is a hint to look, which the rows then decide; and of
    hints there are no more in a second than a worker can afford.
    """

    def __init__(self, config: WorkerConfig, worker_id: str, inbox: Inbox) -> None:
        self._config = config
        self._worker_id = worker_id
        self._inbox = inbox
        self._connection: postgres.OwnLine | None = None
        self._completion_notifier = CompletionNotifier(config.database, worker_id)
        self._alive_for = 3 * config.options.recovery.beat_interval
        self._pinged_at = float("-inf")
        self._notification_limit = NotificationLimit()

    @property
    def is_alive(self) -> bool:
        """Whether what is told is heard."""
        return time.monotonic() - self._pinged_at < self._alive_for

    def start(self) -> None:
        """Begin to listen, if the database can be listened to."""
        if postgres.can_listen(self._config.database):
            self._connection = postgres.OwnLine(self._config.database, postgres.CHANNEL)
            self._inbox.attach(self)
            completions.register_sink(self._config.database, self._completion_notifier)

    def stop(self) -> None:
        """Hear nothing, and tell nobody any more."""
        self._inbox.detach()
        completions.unregister_sink(self._config.database, self._completion_notifier)
        self._completion_notifier.close()

    def publish_completed(self, keys: Iterable[UUID]) -> None:
        """Tell those who wait that these tasks have ended. Costs nothing while nobody does."""
        self._completion_notifier.publish(keys)

    def fileno(self) -> int | None:
        """Return the pump's connection; None while there is none."""
        return None if self._connection is None else self._connection.fileno()

    def receive(self, *, is_readable: bool) -> None:
        """Put what has been said into the inbox."""
        if self._connection is None:
            return
        try:
            if self._connection.listen():
                # What was told before is lost.
                self._inbox.put(Command.POLL)
                self._inbox.put(Command.PING)
            for payload in dict.fromkeys(self._connection.hear(is_readable=is_readable)):
                self._handle(payload)
        except Error as error:
            self._pinged_at = float("-inf")
            logger.warning("LISTEN was lost, polling until it is back: %s", error)
            self._inbox.put(Command.POLL)

    def _handle(self, payload: str) -> None:
        if payload.startswith(postgres.PING):
            if payload == postgres.PING + self._worker_id:
                self._pinged_at = time.monotonic()
            elif payload == postgres.WAITING:
                self._completion_notifier.renew_subscription()
        elif payload == REVOKED:
            self._inbox.put(Command.CHECK_REVOKED)
        elif payload.startswith(STOP_REQUESTED):
            if payload == STOP_REQUESTED + self._worker_id:
                self._inbox.put(Command.CHECK_STOP_REQUEST)
        elif (item := self._item(payload)) is not None:
            if self._notification_limit.allows():
                self._inbox.put(item)
            elif self._notification_limit.is_first_refusal():
                self._inbox.put(Command.POLL_SOON)

    def _item(self, payload: str) -> InboxItem | None:
        """Return what the pump is to make of it; None if that is nothing, for it is no payload or not for this one."""
        if payload.startswith(SLOT_FREED):
            name = payload[len(SLOT_FREED) :]
            return SlotFreed(name) if len(name) <= MAX_NAME_LENGTH and self._config.serves(name) else None
        wake = TaskReady.loads(payload)
        if wake is None or not self._config.serves(wake.queue_name):
            return None
        return Command.POLL if wake.later else wake


class NotificationLimit:
    """A bucket of hints. Those that it refuses come to one look, :data:`SOON`."""

    def __init__(self) -> None:
        self._tokens = BURST
        self._filled_at = time.monotonic()
        self._refused_at = float("-inf")

    def allows(self) -> bool:
        """Whether to go by one more."""
        now = time.monotonic()
        self._tokens = min(BURST, self._tokens + (now - self._filled_at) * RATE)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def is_first_refusal(self) -> bool:
        """Whether none was refused within the time after which the worker looks anyway."""
        now = time.monotonic()
        if now - self._refused_at < POLL_DELAY:
            return False
        self._refused_at = now
        return True
