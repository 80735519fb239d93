"""A ledger that loses no line to a rollback or a crash: a file to which every body appends."""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: The environment variable that names the file. Beside it is a folder with a lock for each key.
VARIABLE = "CHAOS_LEDGER"

BEGAN, NOTED, ENDED, OVERLAPPED = "began", "noted", "ended", "overlapped"


@dataclass(frozen=True)
class Line:
    """A line of a body; ``other`` is the process in which another body with the same key runs."""

    at: float
    what: str
    key: str
    pid: int
    other: int


def note(key: str) -> None:
    """Note the effect of a body."""
    _append(NOTED, key)


@contextmanager
def running(key: str) -> Iterator[None]:
    """Note that a body runs, and whether another one with the same key does.

    The kernel releases a dead process's locks, so no body counts as running after its process has ended.
    """
    folder = Path(f"{os.environ[VARIABLE]}.locks")
    folder.mkdir(exist_ok=True)
    file = os.open(folder / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _append(OVERLAPPED, key, int(os.pread(file, 20, 0) or 0))
        else:
            os.pwrite(file, f"{os.getpid():<20}".encode(), 0)
            _append(BEGAN, key)
        yield
    finally:
        _append(ENDED, key)
        os.close(file)


def lines() -> list[Line]:
    """Return all lines, in the order in which they were written."""
    path = Path(os.environ[VARIABLE])
    if not path.exists():
        return []
    parts = [line.split("\t") for line in path.read_text().splitlines()]
    return [Line(float(at), what, key, int(pid), int(other)) for at, what, key, pid, other in parts]


def effects() -> Counter[str]:
    """Return how often each key was noted."""
    return Counter(line.key for line in lines() if line.what == NOTED)


def _append(what: str, key: str, other: int = 0) -> None:
    """Append one line, in one write."""
    file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{time.time():.3f}\t{what}\t{key}\t{os.getpid()}\t{other}\n".encode())
    finally:
        os.close(file)
