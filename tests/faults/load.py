"""Senders under load while a server fails: what the database acknowledged, against the bodies that ran."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from itertools import count
from types import TracebackType
from typing import Any, Self

import environ
from django.db import Error, close_old_connections, connection, connections
from django.db.models import Min

from horsies_django.core.status import TASK_LIVE_STATES
from horsies_django.models import Task
from horsies_django.models.task import TaskQuerySet
from tests.chaos import jobs, ledger
from tests.conftest import wait_until

#: Threads that send, the seconds between two sends of a thread, and the seconds that a body takes.
SENDERS, PAUSE, WORK = 3, 0.02, 0.02

#: Seconds: a threshold that brief pauses of a worker do not reach; and the environment of its processes.
THRESHOLD = 6.0
RECOVERY = {"TEST_HEARTBEAT_MS": "400", "TEST_CHECK_MS": "200", "TEST_STALE_MS": str(int(THRESHOLD * 1_000))}

#: Sends that each phase of a test waits for.
SOME = 100


def connect_to(url: str) -> None:
    """Let this thread use another database as ``default``."""
    connection.close()
    connection.settings_dict |= {"HOST": "", "PORT": "", "OPTIONS": {}, **environ.Env.db_url_config(url)}


def report(title: str, began: float, over: float, rows: TaskQuerySet) -> None:
    """Print after how many seconds one of these rows was claimed, since a fault ``began`` and since it was ``over``."""
    later = rows.filter(started_at__gt=datetime.fromtimestamp(over, UTC))
    claimed = later.aggregate(first=Min("started_at"))["first"].timestamp()
    print(f"\n{title}: next claim after {claimed - began:.1f} s, {claimed - over:.1f} s after its end")


class Load:
    """Sends tasks one after another from some threads, half of them with a policy that runs them again after a crash.

    The bodies write to a file, which a failover does not undo. A send counts as acknowledged once it has returned, and
    as in doubt if it has raised: nothing tells whether the database has committed it.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(SENDERS)]
        self._numbers = count()
        self.acknowledged: set[str] = set()
        self.in_doubt: dict[str, str] = {}
        self.seconds: list[float] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self.wait_for_more()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)

    def wait_for_more(self) -> None:
        """Wait until more sends are acknowledged, and more bodies have run."""
        sent, ran = len(self.acknowledged), len(ledger.effects())
        wait_until(
            lambda: len(self.acknowledged) >= sent + SOME and len(ledger.effects()) >= ran + SOME,
            what=lambda: f"more tasks are sent and run, in doubt: {self.errors}",
        )

    @property
    def errors(self) -> Counter[str]:
        """How many sends raised which error."""
        return Counter(self.in_doubt.values())

    def use(self, url: str) -> None:
        """Let senders that have lost their connections use this database."""
        self._url = url

    def end(self, title: str, began: float = 0.0, over: float = 0.0) -> Result:
        """Stop sending, wait until every task has ended, and print and return what became of the sends.

        Print the next claim too, if there was none between the times at which the fault ``began`` and was ``over``.
        """
        self.__exit__(None, None, None)
        rows = Task.objects.filter(task_name__startswith=jobs.__name__)
        live = rows.filter(status__in=TASK_LIVE_STATES)
        wait_until(lambda: not live.exists(), what=lambda: f"all tasks have ended: {list(live.values()[:3])}")
        result = Result(self, list(rows.values_list("kwargs__key", "status", "attempt")))
        if over:
            report(title, began, over, rows)
        print(f"\n{title}: {result}, longest send {max(self.seconds):.1f} s")
        for error, times in self.errors.items():
            print(f"  {times} × {error}")
        return result

    def _run(self) -> None:
        connections["default"] = connections["default"].copy()
        connect_to(self._url)
        while not self._stopped.wait(PAUSE):
            number = next(self._numbers)
            key, began = str(number), time.monotonic()
            try:
                close_old_connections()
                (jobs.at_most_once, jobs.at_least_once)[number % 2].send(key=key, seconds=WORK)
            except Error as error:
                connect_to(self._url)
                self.in_doubt[key] = re.sub(r"\s+", " ", re.sub(r"port \d+", "port …", str(error)))
            else:
                self.acknowledged.add(key)
            self.seconds.append(time.monotonic() - began)
        connection.close()


class Result:
    """What became of the sends of a :class:`Load`."""

    def __init__(self, load: Load, rows: list[tuple[Any, ...]]) -> None:
        effects, stored = ledger.effects(), {key for key, *_ in rows}
        #: Acknowledged sends without a row, and tasks of which no body ran.
        self.lost = load.acknowledged - stored
        self.not_run = stored - set(effects)
        #: Keys whose bodies ran more than once, and those that ran although their send is not stored.
        self.twice = {key for key, times in effects.items() if times > 1}
        self.without_row = set(effects) - stored
        #: Tasks that did not complete at their first attempt.
        self.others = {key: rest for key, *rest in rows if rest != ["COMPLETED", 1]}
        self._counts = f"{len(load.acknowledged)} acknowledged, {len(load.in_doubt)} in doubt"
        self._counts += f" ({len(set(load.in_doubt) & stored)} of them stored)"

    def __str__(self) -> str:
        names = ("lost", "not_run", "twice", "without_row", "others")
        return f"{self._counts}, " + ", ".join(f"{len(getattr(self, name))} {name}" for name in names)

    def check(self) -> None:
        """Assert that no acknowledged send was lost, and that each task ran once and completed."""
        assert (self.lost, self.not_run, self.twice, self.without_row, self.others) == (set(), set(), set(), set(), {})
