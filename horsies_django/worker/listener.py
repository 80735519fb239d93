"""The listener: wakes the pump when somebody sends a task."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from django.db import connections

from .. import postgres
from ..waking import REVOKED, Wake
from .inbox import Inbox, Word
from .plan import Plan

logger = logging.getLogger("horsies_django.worker")

_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 30.0


class Listener:
    """LISTENs in a thread of its own. While it can't, ``alive`` is False and the pump polls for itself.

    It believes only its ears: behind a pooler that shares connections between transactions LISTEN succeeds and nothing
    is ever heard. So the pump says the worker's name on its own connection, now and then, and here it has to arrive.
    """

    def __init__(self, plan: Plan, worker_id: str, inbox: Inbox) -> None:
        self._plan = plan
        self._ping = postgres.PING + worker_id
        self._inbox = inbox
        self._stopped = threading.Event()
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
            threading.Thread(target=self.run, name="horsies-listener", daemon=True).start()

    def stop(self) -> None:
        """End within a second."""
        self._stopped.set()

    def run(self) -> None:
        """Listen, and connect anew when the connection is lost, after a pause that grows."""
        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            since = time.monotonic()
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001  # logged; polling carries on, and so does the next round
                if self.alive or pause == _FIRST_PAUSE:
                    logger.warning("LISTEN was lost, polling until it is back: %s", error)
            self._heard_at = float("-inf")
            if time.monotonic() - since > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            self._stopped.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        connections.close_all()

    def _listen(self) -> None:
        is_new = True
        for payloads in postgres.notifications(self._plan.database, timeout=1.0):
            if self._stopped.is_set():
                return
            if is_new:  # what was told before is lost
                self._inbox.put(Word.WAKE)
                self._inbox.put(Word.PING)
                is_new = False
            for payload in payloads:
                self._hear(payload)

    def _hear(self, payload: str) -> None:
        if payload.startswith(postgres.PING):
            if payload == self._ping:
                self._heard_at = time.monotonic()
        elif payload == REVOKED:
            self._inbox.put(Word.REVOKED)
        elif self._plan.serves((wake := Wake.loads(payload)).queue_name):
            self._inbox.put(Word.LOOK if wake.later else Word.WAKE)
