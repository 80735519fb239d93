"""The listener: wakes the pump when somebody sends a task, and tells those who wait of the ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from uuid import UUID

from django.db import Error

from ..db import completions, postgres
from ..db.notifications import DISMISSED, FREED, LONGEST_NAME, REVOKED, Freed, Wake
from .commands import Inbox, Item, Word
from .completion_notifier import Teller
from .config import Plan
from .hints import Hints

logger = logging.getLogger("horsies_django.worker")


class Listener:
    """LISTENs on the pump's own connection, in its thread. While it can't, ``alive`` is False and the pump polls.

    From the word of a sender to the claim there is so one process to be woken here and one of the server, and each of
    them is the one that claims. On an idle machine it is those wakes that take the time.

    It believes only its ears: behind a pooler that shares connections between transactions LISTEN succeeds and nothing
    is ever heard. So the pump says the worker's name, now and then, and here it has to arrive.

    Any role that may connect may say anything. So what is heard is a hint to look, which the rows then decide; and of
    hints there are no more in a second than a worker can afford.
    """

    def __init__(self, plan: Plan, worker_id: str, inbox: Inbox) -> None:
        self._plan = plan
        self._worker_id = worker_id
        self._inbox = inbox
        self._line: postgres.OwnLine | None = None
        self._teller = Teller(plan.database, worker_id)
        self._believed_for = 3 * plan.options.recovery.beat_interval
        self._heard_at = float("-inf")
        self._hints = Hints()

    @property
    def alive(self) -> bool:
        """Whether what is told is heard."""
        return time.monotonic() - self._heard_at < self._believed_for

    def start(self) -> None:
        """Begin to listen, if the database can be listened to."""
        if postgres.can_listen(self._plan.database):
            self._line = postgres.OwnLine(self._plan.database, postgres.CHANNEL)
            self._inbox.attend(self)
            completions.appoint(self._plan.database, self._teller)

    def stop(self) -> None:
        """Hear nothing, and tell nobody any more."""
        self._inbox.ignore()
        completions.dismiss(self._plan.database, self._teller)
        self._teller.close()

    def ended(self, keys: Iterable[UUID]) -> None:
        """Tell those who wait that these tasks have ended. Costs nothing while nobody does."""
        self._teller.ended(keys)

    def fileno(self) -> int | None:
        """Return the pump's connection; None while there is none."""
        return None if self._line is None else self._line.fileno()

    def hear(self, *, is_readable: bool) -> None:
        """Put what has been said into the inbox."""
        if self._line is None:
            return
        try:
            if self._line.listen():
                # What was told before is lost.
                self._inbox.put(Word.LOOK)
                self._inbox.put(Word.PING)
            for payload in dict.fromkeys(self._line.hear(is_readable=is_readable)):
                self._hear(payload)
        except Error as error:
            self._heard_at = float("-inf")
            logger.warning("LISTEN was lost, polling until it is back: %s", error)
            self._inbox.put(Word.LOOK)

    def _hear(self, payload: str) -> None:
        if payload.startswith(postgres.PING):
            if payload == postgres.PING + self._worker_id:
                self._heard_at = time.monotonic()
            elif payload == postgres.WAITING:
                self._teller.asked()
        elif payload == REVOKED:
            self._inbox.put(Word.REVOKED)
        elif payload.startswith(DISMISSED):
            if payload == DISMISSED + self._worker_id:
                self._inbox.put(Word.DISMISS)
        elif (item := self._item(payload)) is not None:
            if self._hints.allows():
                self._inbox.put(item)
            elif self._hints.is_first_refusal():
                self._inbox.put(Word.SOON)

    def _item(self, payload: str) -> Item | None:
        """Return what the pump is to make of it; None if that is nothing, for it is no payload or not for this one."""
        if payload.startswith(FREED):
            name = payload[len(FREED) :]
            return Freed(name) if len(name) <= LONGEST_NAME and self._plan.serves(name) else None
        wake = Wake.loads(payload)
        if wake is None or not self._plan.serves(wake.queue_name):
            return None
        return Word.LOOK if wake.later else wake
