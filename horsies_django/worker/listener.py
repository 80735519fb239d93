"""The listener: wakes the pump when somebody sends a task, and tells those who wait of the ends."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final
from uuid import UUID

from django.db import connections

from .. import postgres
from ..waking import REVOKED, Wake
from .inbox import Inbox, Word
from .plan import Plan
from .telling import Teller

logger = logging.getLogger("horsies_django.worker")

_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 30.0

#: Seconds that it waits at most for something to be said.
_LONGEST_WAIT: Final = 30.0


class Listener:
    """LISTENs in a thread of its own. While it can't, ``alive`` is False and the pump polls for itself.

    It believes only its ears: behind a pooler that shares connections between transactions LISTEN succeeds and nothing
    is ever heard. So the pump says the worker's name on its own connection, now and then, and here it has to arrive.
    """

    def __init__(self, plan: Plan, worker_id: str, inbox: Inbox) -> None:
        self._plan = plan
        self._worker_id = worker_id
        self._inbox = inbox
        self._stopped = threading.Event()
        self._clapper: socket.socket | None = None
        self._teller = Teller(self._ring)
        recovery = plan.options.recovery
        beats = min(recovery.claimer_heartbeat_interval_ms, recovery.runner_heartbeat_interval_ms) / 1_000
        self._believed_for = 3 * beats
        self._heard_at = float("-inf")

    @property
    def alive(self) -> bool:
        """Whether what is told is heard."""
        return time.monotonic() - self._heard_at < self._believed_for

    def start(self) -> None:
        """Begin to listen, if the database can be listened to."""
        if postgres.can_listen(self._plan.database):
            bell, self._clapper = socket.socketpair()
            bell.setblocking(False)
            self._clapper.setblocking(False)
            threading.Thread(target=self.run, args=(bell,), name="horsies-listener", daemon=True).start()

    def stop(self) -> None:
        """End soon."""
        self._stopped.set()
        self._ring()
        if self._clapper is not None:
            self._clapper.close()

    def ended(self, keys: Iterable[UUID]) -> None:
        """Tell those who wait that these tasks have ended. Costs nothing while nobody does."""
        self._teller.ended(keys)

    def run(self, bell: socket.socket) -> None:
        """Listen, and connect anew when the connection is lost, after a pause that grows."""
        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            since = time.monotonic()
            try:
                self._listen(bell)
            except Exception as error:  # noqa: BLE001  # logged; polling carries on, and so does the next round
                if self.alive or pause == _FIRST_PAUSE:
                    logger.warning("LISTEN was lost, polling until it is back: %s", error)
            self._heard_at = float("-inf")
            if time.monotonic() - since > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            self._stopped.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        bell.close()
        connections.close_all()

    def _listen(self, bell: socket.socket) -> None:
        with postgres.Line(self._plan.database, postgres.CHANNEL, f"{self._worker_id} listener") as line:
            # What was told before is lost.
            self._inbox.put(Word.LOOK)
            self._inbox.put(Word.PING)
            while not self._stopped.is_set():
                for payload in line.hear(min(self._teller.wait(), _LONGEST_WAIT), bell):
                    self._hear(payload)
                with suppress(BlockingIOError):
                    bell.recv(4096)
                line.say(postgres.ENDED, self._teller.payloads())

    def _hear(self, payload: str) -> None:
        if payload.startswith(postgres.PING):
            if payload == postgres.PING + self._worker_id:
                self._heard_at = time.monotonic()
            elif payload == postgres.WAITING:
                self._teller.asked()
        elif payload == REVOKED:
            self._inbox.put(Word.REVOKED)
        elif self._plan.serves((wake := Wake.loads(payload)).queue_name):
            self._inbox.put(Word.LOOK if wake.later else wake)

    def _ring(self) -> None:
        if self._clapper is not None:
            with suppress(OSError):  # full: it rings already; broken: nobody listens any more
                self._clapper.send(b".")
