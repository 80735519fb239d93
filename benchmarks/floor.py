"""``python -m benchmarks.floor PROCESSES`` drains the queue with nothing but a worker's statement.

Each process is a bare loop around a psycopg cursor, which stores the results of a batch and claims the next. It makes
no result, calls no body and looks after nothing: what is left is the work of the server and of the driver. The seconds
from the first claim to the last result are printed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import django
import psycopg

#: Tasks of each claim, about as many as a runner claims.
_BATCH: Final = 128


def main() -> None:
    """Fork the processes, wait for them, and print the seconds."""
    django.setup()
    start = time.monotonic() + 3  # once all are connected
    ends, when_ended = os.pipe()
    processes = int(sys.argv[1])
    for number in range(processes):
        if not os.fork():
            os.write(when_ended, f"{_drain(f'floor{number}', start)}\n".encode())
            os._exit(0)
    for _ in range(processes):
        os.wait()
    os.close(when_ended)
    with open(ends) as lines:
        print(max(map(float, lines)) - start)


def _drain(worker_id: str, start: float) -> float:
    """Drain from ``start`` on and return when the last result was stored."""
    from horsies_django.db.connection import own_connection

    with own_connection("default", worker_id, is_busy=True):
        cursor, claim = _compile(worker_id)
        time.sleep(max(0.0, start - time.monotonic()))
        held: list[Any] = []
        while True:
            ids = [str(row[0]) for row in held]
            bound = {
                "ended": "{" + ",".join(ids) + "}",
                "claims": json.dumps({task_id: str(row[8]) for task_id, row in zip(ids, held, strict=True)}),
                "results": "{" + ",".join(f'"{task_id}":0' for task_id in ids) + "}",
                "seconds": "{" + ",".join(f'"{task_id}":"-0.001"' for task_id in ids) + "}",
                "room": _BATCH,
                "queue": "default",
            }
            cursor.execute(*claim(bound))
            held = cursor.fetchall()
            if not held:
                return time.monotonic()


def _compile(worker_id: str) -> tuple[psycopg.Cursor[Any], Callable[[Mapping[str, Any]], Any]]:
    """Return a plain cursor, and a function that returns the worker's statement with its parameters."""
    from django.db import connection

    from horsies_django.models import Task
    from horsies_django.models.claim.complete_and_claim import compile_for
    from horsies_django.models.claims import WorkerInfo

    statement: Any = compile_for(Task.objects.all(), WorkerInfo(worker_id, "floor", os.getpid()), is_async=False)
    select = statement._of_one
    return psycopg.Cursor(connection.connection), lambda bound: (select.sql, select.bind(bound))


if __name__ == "__main__":
    main()
