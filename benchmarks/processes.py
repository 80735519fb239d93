"""Starts worker processes and always stops them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

#: The start of a line that reports an error, such as the last line of a traceback.
_ERROR = re.compile(r"[\w.]*(Error|Exception|Failed)\b|error\b", re.IGNORECASE)

#: Seconds between SIGTERM and SIGKILL.
_GRACE = 10.0


class WorkerGroup:
    """The worker processes of one peer. Each leads its own session and process group."""

    def __init__(self, commands: Sequence[Sequence[str]], env: Mapping[str, str], folder: Path, log: Path) -> None:
        self._log = log
        self._leaders: list[subprocess.Popen[bytes]] = []
        try:
            for command in commands:
                self._leaders.append(self._start(command, env, folder))
        except BaseException:
            self.stop()
            raise

    def _start(self, command: Sequence[str], env: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603
                command,
                env=env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def raise_if_exited(self) -> None:
        """Raise RuntimeError if a worker has exited."""
        for leader in self._leaders:
            if leader.poll() is not None:
                raise RuntimeError(f"a worker exited with status {leader.returncode}: {last_error_line(self._log)}")

    def wait(self) -> None:
        """Wait until every worker has exited by itself."""
        for leader in self._leaders:
            leader.wait()

    def pids(self) -> list[int]:
        """Return the ids of all processes in the workers' sessions."""
        sessions = {leader.pid for leader in self._leaders}
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _session(pid) in sessions]

    def stop(self) -> None:
        """Terminate the workers, kill them after a grace period, and kill any processes that they leave behind."""
        for leader in self._leaders:
            leader.terminate()
        until = time.monotonic() + _GRACE
        for leader in self._leaders:
            try:
                leader.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                leader.kill()
                leader.wait()
        for leader in self._leaders:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(leader.pid, signal.SIGKILL)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


@contextmanager
def run_workers(
    commands: Sequence[Sequence[str]], env: Mapping[str, str], folder: Path, log: Path
) -> Iterator[WorkerGroup]:
    """Run worker processes for the length of the block."""
    group = WorkerGroup(commands, env, folder, log)
    try:
        yield group
    finally:
        group.stop()


def last_error_line(log: Path) -> str:
    """Return the last line of a log that reports an error, else the last line with text."""
    if not log.exists():
        return ""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    texts = [line for line in lines if any(map(str.isalpha, line))]
    return next(filter(_ERROR.match, reversed(texts)), texts[-1] if texts else "")
