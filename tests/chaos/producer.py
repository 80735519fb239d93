"""Sends tasks and starts workflows continuously, and records which."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from django.db import Error, close_old_connections, connection

from horsies_django import HorsiesTask, Workflow
from horsies_django.enqueue.call_builder import CallBuilder
from horsies_django.models import Task
from tests.chaos.shapes import SHAPES

#: Seconds between two sends, on average.
PAUSE = 0.1

#: The share of workflows among all sends.
WORKFLOWS = 0.15


class Producer:
    """Sends from a separate thread until :meth:`stop`."""

    def __init__(self, seed: int, kinds: Mapping[HorsiesTask[..., Any], float]) -> None:
        self._random = random.Random(seed)
        self._kinds = kinds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: Exception | None = None
        #: Keys of the sends that the database has confirmed, and of those whose answer was lost.
        self.sent: set[str] = set()
        self.uncertain: set[str] = set()
        #: The same for the ids of workflows.
        self.started: set[UUID] = set()
        self.perhaps_started: set[UUID] = set()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sending. Raise the error that has ended the thread earlier, if there was one."""
        self._stopped.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._send_and_start()
        except Exception as error:  # stop() raises it
            self._error = error
        finally:
            connection.close()

    def _send_and_start(self) -> None:
        number = 0
        while not self._stopped.wait(self._random.expovariate(1 / PAUSE)):
            number += 1
            if self._random.random() < WORKFLOWS:
                self._start(self._random.choice(SHAPES), f"w{number}", round(self._random.random(), 3))
                continue
            task = self._random.choices(list(self._kinds), list(self._kinds.values()))[0]
            key, seconds = f"t{number}", self._seconds()
            if self._is_confirmed(partial(self._send, task, key, seconds)):
                self.sent.add(key)
            else:
                self.uncertain.add(key)

    def _start(self, shape: Callable[[str, float], Workflow[Any]], key: str, seconds: float) -> None:
        """Start a workflow, and start it again with the same id if the first answer is lost."""
        workflow, workflow_id = shape(key, seconds), UUID(int=self._random.getrandbits(128), version=4)
        for _ in range(2):
            if self._is_confirmed(partial(workflow.start, workflow_id)):
                self.started.add(workflow_id)
                return
        self.perhaps_started.add(workflow_id)

    def _is_confirmed(self, send: Callable[[], object]) -> bool:
        """Send; return whether the database has confirmed it."""
        try:
            close_old_connections()
            send()
        except Error:
            connection.close()
            time.sleep(0.2)
            return False
        return True

    def _seconds(self) -> float:
        """Return a duration for a body. Some are so long that their task runs again meanwhile."""
        return round(self._random.random() * self._random.choice([1, 1, 1, 1, 1, 1, 1, 5]), 3)

    def _send(self, task: HorsiesTask[..., Any], key: str, seconds: float) -> None:
        if self._random.random() < 0.2:
            self._insert_without_notification(task, key, seconds)
        elif self._random.random() < 0.1:
            task.schedule(self._random.uniform(0.1, 3.0), key=key, seconds=seconds)
        else:
            task.send(key=key, seconds=seconds)

    def _insert_without_notification(self, task: HorsiesTask[..., Any], key: str, seconds: float) -> None:
        """Insert a row without a notification, as if that had been lost."""
        calls = CallBuilder.of(task, task.get_backend().config)
        arguments = calls.arguments((), {"key": key, "seconds": seconds})
        Task.objects.create(**calls.columns, args=arguments.args, kwargs=arguments.kwargs)
