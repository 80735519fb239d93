"""The listener: wakes the pump when somebody sends a task."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from django.db import connections

from .. import postgres
from ..waking import Wake
from .inbox import Inbox, Word
from .plan import Plan

logger = logging.getLogger("horsies_django.worker")

_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 30.0


class Listener:
    """LISTENs in a thread of its own. While it can't, ``alive`` is False and the pump polls for itself."""

    def __init__(self, plan: Plan, inbox: Inbox) -> None:
        self._plan = plan
        self._inbox = inbox
        self._stopped = threading.Event()
        self.alive = False

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
            self.alive = False
            if time.monotonic() - since > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            self._stopped.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        connections.close_all()

    def _listen(self) -> None:
        for payloads in postgres.notifications(self._plan.database, timeout=1.0):
            if self._stopped.is_set():
                return
            wakes = [wake for wake in map(Wake.loads, payloads) if self._plan.serves(wake.queue_name)]
            if not self.alive or any(not wake.later for wake in wakes):
                self._inbox.put(Word.WAKE)
            if any(wake.later for wake in wakes):
                self._inbox.put(Word.LOOK)
            self.alive = True
