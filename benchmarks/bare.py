"""``python -m benchmarks.bare COUNT`` runs bare processes of a Django project and prints the PSS of all, in bytes.

They are forked from one that has only called ``django.setup()``, which is one of them. Each opens a connection.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import django


def pss(pid: int) -> int:
    """Return the proportional set size: private memory plus a share of shared memory."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """Start the processes, measure them, and end them."""
    django.setup()
    ready, when_ready = os.pipe()
    pids = [os.getpid()]
    try:
        while len(pids) < int(sys.argv[1]):
            if not (pid := os.fork()):
                _wait(when_ready)
            pids.append(pid)
        _connect()
        for _ in pids[1:]:
            os.read(ready, 1)
        print(sum(map(pss, pids)))
    finally:
        for pid in pids[1:]:
            os.kill(pid, signal.SIGKILL)


def _wait(when_ready: int) -> NoReturn:
    _connect()
    os.write(when_ready, b".")
    while True:
        signal.pause()


def _connect() -> None:
    from django.db import connection

    connection.ensure_connection()


if __name__ == "__main__":
    main()
