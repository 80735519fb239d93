"""What a supervisor shows of its runners to others: figures for metrics and health checks, and the heartbeat file."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from django.core.exceptions import ImproperlyConfigured

from ..core.platform import resident_bytes_of
from .config import WorkerConfig
from .started_registry import Activity

if TYPE_CHECKING:
    from .spawner import Child

logger = logging.getLogger("horsies_django.worker")

#: Seconds without a turn of its loop after which a supervisor counts as stuck; a turn takes about a second at most.
STUCK_AFTER: Final = 10.0

#: Seconds between two writes.
_FILE_INTERVAL: Final = 1.0

#: Probes may run as other users.
_FILE_MODE: Final = 0o644


@dataclass(frozen=True, slots=True)
class RunnerFigures:
    """A runner: whether it is up, its memory in bytes (None if unknown), and its activity.

    It is up if it has registered, does not stand still, and takes work.
    """

    worker_id: str
    is_up: bool
    memory: int | None
    activity: Activity


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """The figures of one worker: its runners, how many were started, and the attempts of all since the worker began.

    ``threads`` and ``async_slots`` are the slots of each runner. ``memory`` is that of the supervisor, in bytes.
    """

    configured: int
    threads: int
    async_slots: int
    runners: tuple[RunnerFigures, ...]
    started: int
    ended: Activity
    memory: int | None


def serve_nothing(_: SupervisorFigures) -> AbstractContextManager[None]:
    """Serve nothing: the default of ``serve``."""
    return nullcontext()


class SupervisorFigures:
    """Collects the figures; the supervisor writes, and any thread reads."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._children: list[Child] = []
        self._started = 0
        self._ended = Activity()  # of runners that are gone
        self._turned_at = time.monotonic()
        self._is_stopping = False

    # Written by the supervisor.

    def record_turn(self) -> None:
        """Record that the supervisor's loop turns."""
        self._turned_at = time.monotonic()

    def record_stop(self) -> None:
        """Record that the worker stops."""
        self._is_stopping = True

    def add(self, child: Child) -> None:
        """Add a runner that was started."""
        with self._lock:
            self._children.append(child)
            self._started += 1

    def remove(self, child: Child) -> None:
        """Forget a runner that has ended, but not what it has done. Its memory must still be mapped."""
        with self._lock:
            self._children.remove(child)
            self._ended = _sum(self._ended, child.started_registry.activity)

    # Read by others.

    @property
    def is_live(self) -> bool:
        """Whether the supervisor's loop turns."""
        return time.monotonic() - self._turned_at < STUCK_AFTER

    @property
    def is_ready(self) -> bool:
        """Whether a runner is up, and the worker is not stopping."""
        with self._lock:
            return not self._is_stopping and any(map(_is_up, self._children))

    def read(self) -> WorkerFigures:
        """Return the figures now."""
        with self._lock:
            runners = tuple(
                RunnerFigures(
                    child.worker_id,
                    _is_up(child),
                    resident_bytes_of(child.process.pid),
                    child.started_registry.activity,
                )
                for child in self._children
            )
            started, ended = self._started, self._ended
        for runner in runners:
            ended = _sum(ended, runner.activity)
        config = self._config
        return WorkerFigures(
            config.processes,
            config.threads,
            config.async_slots,
            runners,
            started,
            ended,
            resident_bytes_of(os.getpid()),
        )


def _is_up(child: Child) -> bool:
    is_running = child.process.returncode is None and not child.is_killed
    return is_running and not child.is_retiring and child.stall_detector.is_healthy


def _sum(first: Activity, second: Activity) -> Activity:
    return Activity(*(count + other for count, other in zip(first, second, strict=True)))


class HeartbeatFile:
    """A file that the supervisor writes while its loop turns and a runner of it is healthy. Without a path: none."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._next_write = 0.0
        self._has_failed = False

    def prepare(self) -> None:
        """Delete the file of an earlier process. Raises ImproperlyConfigured if the path can't be written."""
        if self._path is None:
            return
        try:
            self._write(self._path)
            self._path.unlink()  # until a runner is healthy
        except (OSError, ValueError) as error:  # ValueError: the path has a NUL
            allowed = "a file, in a folder that exists and that this process may write to"
            raise ImproperlyConfigured(
                f"--heartbeat-file: {str(self._path)!r} can't be written: {error}; allowed: {allowed}."
            ) from error

    def beat(self) -> None:
        """Write the current time, if the last write is a second ago. A failure is logged once."""
        if self._path is None or time.monotonic() < self._next_write:
            return
        self._next_write = time.monotonic() + _FILE_INTERVAL
        try:
            self._write(self._path)
            self._has_failed = False
        except OSError as error:  # the disk is full, say: the worker goes on, and the file's age tells
            if not self._has_failed:
                logger.error("heartbeat file not written path=%s error=%s", self._path, error)
            self._has_failed = True

    def remove(self) -> None:
        """Delete the file, because the worker ends."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()

    def _write(self, path: Path) -> None:
        """Replace the file as a whole, so that a reader never sees a part of it. Raises OSError.

        The name of the new file is random and it is created exclusively, so no other user can plant a link there.
        """
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w") as file:
                os.chmod(handle, _FILE_MODE)
                file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')}\n")
            os.replace(temporary, path)  # which replaces a link at the path, not the file behind it
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
