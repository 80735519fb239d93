"""Sends the mixed load of the soak, at a steady rate."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from horsies_django import Batch
from horsies_django.models import Task
from tests.soak import jobs

#: Seconds between two rounds of sends.
ROUND = 0.5


class Load:
    """Sends from a thread until :meth:`stop`; ``rate`` is in calls a second."""

    def __init__(self, rate: float) -> None:
        self.sent = 0
        self._each_round = max(1, round(rate * ROUND))
        self._random = random.Random(1)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: Exception | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sending."""
        self._stopped.set()
        self._thread.join()

    def check(self) -> None:
        """Raise the error that ended the thread, if one did."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while not self._stopped.wait(max(0.0, due - time.monotonic())):
                due += ROUND
                self._send_round()
        except Exception as error:  # check() raises it
            self._error = error
        finally:
            connection.close()

    def _send_round(self) -> None:
        kinds: list[tuple[float, Callable[[], Any]]] = [
            (40, lambda: jobs.quick.send(number=self._random.randrange(1_000))),
            (15, lambda: jobs.waiting.send(seconds=self._random.random())),
            (5, lambda: jobs.working.send(seconds=0.02)),
            (5, lambda: jobs.unreliable.send(fails=self._random.randrange(4))),
            (10, lambda: jobs.quick.schedule(self._random.randrange(1, 30), number=1)),
            (5, lambda: jobs.quick.with_options(priority=self._random.randrange(-100, 101)).send(number=2)),
            (5, lambda: jobs.unique.send(number=self._random.randrange(20))),
            (5, jobs.limited.send),
            (5, lambda: jobs.gathered.send(customer=self._random.randrange(10))),
            (2, lambda: jobs.quick.schedule(3_600, number=3).cancel()),
            (2, lambda: jobs.quick.using(run_after=timezone.now() + timedelta(seconds=5)).enqueue(4)),
            (0.7, lambda: jobs.flow().start()),
            (0.3, self._start_batch),
        ]
        weights, sends = zip(*kinds, strict=True)
        for send in self._random.choices(sends, weights, k=self._each_round):
            send()
            self.sent += 1

    def _start_batch(self) -> None:
        with Batch("soak") as batch:
            batch.add_many(jobs.quick, ({"number": number} for number in range(20)))


def waiting_now() -> int:
    """Return how many tasks are due."""
    return Task.objects.pending().filter(enqueued_at__lte=timezone.now()).count()
