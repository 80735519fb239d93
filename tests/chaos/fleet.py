"""Workers as processes that can be hurt."""

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

#: Seconds for which a runner may outlive its supervisor: one that is starting notices when it has started, which takes
#: a busy machine that long.
ORPHANED_FOR = 20.0


def state(pid: int) -> str:
    """The letter that the kernel gives for the state of a process; nothing if there is no such process."""
    return (_stat(pid) or [""])[0]


def is_alive(pid: int) -> bool:
    """Whether the process still runs; one that nobody has waited for does not."""
    return state(pid) not in ("", "Z", "X")


def children(parent: int) -> list[int]:
    """The living processes that ``parent`` has started."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if (stat := _stat(pid)) and stat[1] == str(parent) and stat[0] not in ("Z", "X")]


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop processes while none of them holds SQLite's write lock. At the end the living go on, the last first."""
    with transaction.atomic():
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: all(state(pid) == "T" for pid in pids), what="the processes stand still")
    try:
        yield
    finally:
        for pid in reversed(pids):
            if is_alive(pid):
                os.kill(pid, signal.SIGCONT)


@dataclass
class Member:
    """A supervisor, the leader of a process group of its own."""

    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    @property
    def runners(self) -> list[int]:
        """The processes of its runners."""
        return children(self.pid)


class Fleet:
    """Some workers on one database. What dies is started anew by :meth:`tend`."""

    def __init__(self, flags: Sequence[str], environment: dict[str, str], log: IO[bytes]) -> None:
        self._flags = flags
        self._environment = os.environ | environment
        self._log = log
        self.members: list[Member] = []
        self._left_behind: dict[int, float] = {}
        self.orphans: list[int] = []
        #: Processes of runners that were hurt or told to stop, and those whose supervisor could not watch them.
        self.hurt: set[int] = set()
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

    def tend(self) -> None:
        """Replace the supervisors that are gone, and note runners that outlive theirs by too long."""
        for member in list(self.members):
            if member.process.poll() is not None:
                self.members.remove(member)
                self.start()
        self.watch_orphans()

    def kill(self, member: Member) -> None:
        """SIGKILL a supervisor; its runners have to notice by themselves."""
        runners = member.runners
        self.leave_alone(member)
        member.process.kill()
        member.process.wait()
        self._left_behind |= {pid: time.monotonic() + ORPHANED_FOR for pid in runners}

    def leave_alone(self, member: Member) -> None:
        """Note that the supervisor does not watch its runners from now on, for it is killed or frozen."""
        self.unwatched |= set(member.runners)
        self.hurt |= set(member.runners)

    def watch_orphans(self) -> None:
        """Note, and end, the runners that live on without a supervisor. One that is stopped can't notice yet."""
        for pid, limit in list(self._left_behind.items()):
            if not is_alive(pid):
                del self._left_behind[pid]
            elif state(pid) == "T":
                self._left_behind[pid] = time.monotonic() + ORPHANED_FOR
            elif time.monotonic() > limit:
                del self._left_behind[pid]
                self.orphans.append(pid)
                hurt(pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill every supervisor, and wait for what they leave behind."""
        for member in self.members:
            for pid in (member.pid, *member.runners):
                hurt(pid, signal.SIGCONT)
            self.kill(member)
        self.members.clear()
        while self._left_behind:
            self.watch_orphans()
            time.sleep(0.05)


def hurt(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that is gone feels nothing."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
