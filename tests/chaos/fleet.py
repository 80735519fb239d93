"""Workers as processes that tests can kill, stop and signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from django.db import transaction

from tests.chaos.cluster import ROOT
from tests.conftest import wait_until

#: Seconds for which a runner may outlive its supervisor: a runner notices only once it has started, which takes so long
#: on a busy machine.
ORPHANED_FOR = 20.0


def state(pid: int) -> str:
    """Return the kernel's letter for the state of a process, or an empty string if it does not exist."""
    return (_stat(pid) or [""])[0]


def is_alive(pid: int) -> bool:
    """Whether the process still runs; a zombie does not."""
    return state(pid) not in ("", "Z", "X")


def children(parent: int) -> list[int]:
    """Return the living processes that ``parent`` has started."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if (stat := _stat(pid)) and stat[1] == str(parent) and stat[0] not in ("Z", "X")]


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop processes while none of them holds SQLite's write lock. At the end the living continue, the last first."""
    with transaction.atomic():
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: all(state(pid) == "T" for pid in pids), what="the processes are stopped")
    try:
        yield
    finally:
        for pid in reversed(pids):
            if is_alive(pid):
                os.kill(pid, signal.SIGCONT)


@dataclass
class Member:
    """A supervisor, which leads its own process group."""

    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self.process.pid

    @property
    def runners(self) -> list[int]:
        """The process ids of its runners."""
        return children(self.pid)


class Fleet:
    """Workers on one database. :meth:`replace_ended` restarts those that have died."""

    def __init__(self, flags: Sequence[str], environment: dict[str, str], log: IO[bytes]) -> None:
        self._flags = flags
        self._environment = os.environ | environment
        self._log = log
        self.members: list[Member] = []
        self._left_behind: dict[int, float] = {}
        self.orphans: list[int] = []
        #: Process ids of runners that were disrupted, and of those whose supervisor could not watch them.
        self.disrupted: set[int] = set()
        self.unwatched: set[int] = set()

    def start(self) -> Member:
        """Start one more worker."""
        process = subprocess.Popen(
            [sys.executable, "manage.py", "horsies_worker", *self._flags],
            cwd=ROOT,
            env=self._environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.members.append(Member(process))
        return self.members[-1]

    def replace_ended(self) -> None:
        """Replace the supervisors that have ended, and note runners that outlive theirs by too long."""
        for member in list(self.members):
            if member.process.poll() is not None:
                self.members.remove(member)
                self.start()
        self.watch_orphans()

    def kill(self, member: Member) -> None:
        """Kill a supervisor with SIGKILL; its runners have to notice by themselves."""
        runners = member.runners
        self.mark_unwatched(member)
        member.process.kill()
        member.process.wait()
        self._left_behind |= {pid: time.monotonic() + ORPHANED_FOR for pid in runners}

    def mark_unwatched(self, member: Member) -> None:
        """Note that the supervisor does not watch its runners from now on, because it is killed or frozen."""
        self.unwatched |= set(member.runners)
        self.disrupted |= set(member.runners)

    def watch_orphans(self) -> None:
        """Note and kill the runners that live on without a supervisor. A stopped runner can't notice yet."""
        for pid, limit in list(self._left_behind.items()):
            if not is_alive(pid):
                del self._left_behind[pid]
            elif state(pid) == "T":
                self._left_behind[pid] = time.monotonic() + ORPHANED_FOR
            elif time.monotonic() > limit:
                del self._left_behind[pid]
                self.orphans.append(pid)
                send_signal(pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill every supervisor, and wait for the runners that they leave behind."""
        for member in self.members:
            for pid in (member.pid, *member.runners):
                send_signal(pid, signal.SIGCONT)
            self.kill(member)
        self.members.clear()
        while self._left_behind:
            self.watch_orphans()
            time.sleep(0.05)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, if it still exists."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
