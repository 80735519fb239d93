"""Sends tasks all the time, and knows what it has sent."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from django.db import Error, close_old_connections, connection

from horsies_django import HorsiesTask
from horsies_django.models import Task

#: Seconds between two sends, on average.
PAUSE = 0.06


class Producer:
    """Sends from a thread of its own until told to stop."""

    def __init__(self, seed: int, kinds: list[HorsiesTask[..., Any]]) -> None:
        self._random = random.Random(seed)
        self._kinds = kinds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        #: What the database has confirmed, and what it may or may not have got: the answer was lost.
        self.sent: set[str] = set()
        self.uncertain: set[str] = set()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(self._random.expovariate(1 / PAUSE)):
            number += 1
            key = f"t{number}"
            task = self._random.choice(self._kinds)
            try:
                close_old_connections()
                self._send(task, key, self._seconds())
                self.sent.add(key)
            except Error:
                self.uncertain.add(key)
                connection.close()
                time.sleep(0.2)
        connection.close()

    def _seconds(self) -> float:
        """How long a body is to take. Some are so long that their task runs again while they still do."""
        return round(self._random.random() * self._random.choice([1, 1, 1, 1, 1, 1, 1, 5]), 3)

    def _send(self, task: HorsiesTask[..., Any], key: str, seconds: float) -> None:
        if self._random.random() < 0.2:
            self._insert_in_silence(task, key, seconds)
        elif self._random.random() < 0.1:
            task.schedule(self._random.uniform(0.1, 3.0), key=key, seconds=seconds)
        else:
            task.send(key=key, seconds=seconds)

    def _insert_in_silence(self, task: HorsiesTask[..., Any], key: str, seconds: float) -> None:
        """As if the notification had been lost: nobody is told of the row."""
        from horsies_django.sending import build
        from horsies_django.worker.plan import horsies_backend

        row = build(horsies_backend("default").config, task, (), {"key": key, "seconds": seconds})
        assert isinstance(row, Task)
        row.save(force_insert=True)
