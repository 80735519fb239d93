"""Starts runners: forked from the fork server, or in a new interpreter where there is none."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from django.conf import settings
from django.core.cache import caches
from django.db import connections

from .config import WorkerConfig
from .forkserver import ForkedProcess, ForkServer
from .inbox import Command
from .stall_detector import StallDetector
from .started_registry import StartedRegistry, create_shared_memory

logger = logging.getLogger("horsies_django.worker")


@dataclass(slots=True, eq=False)
class Child:
    """A runner's process as its supervisor sees it. ``retire_pipe`` delivers why it takes no more work."""

    worker_id: str
    process: subprocess.Popen[str] | ForkedProcess
    started_registry: StartedRegistry
    stall_detector: StallDetector
    retire_pipe: int
    is_killed: bool = False
    is_retiring: bool = False
    is_replaced: bool = False

    def send(self, command: Command) -> None:
        """Send a command to the runner, unless it is gone."""
        with suppress(OSError, ValueError):
            assert self.process.stdin is not None
            self.process.stdin.write(f"{command.name}\n")
            self.process.stdin.flush()

    def kill(self, why: str) -> None:
        """Kill the process, once."""
        if not self.is_killed:
            logger.error("runner killed id=%s: %s", self.worker_id, why)
            self.is_killed = True
            self.process.kill()


class Spawner:
    """Starts the runners of one supervisor."""

    def __init__(self, config: WorkerConfig, verbosity: int) -> None:
        self._config = config
        self._verbosity = verbosity
        self._fork_server: ForkServer | None = None

    def open(self) -> None:
        """Start the fork server, while this process has no connection and no second thread."""
        if self._config.fork:
            connections.close_all()
            caches.close_all()
            self._fork_server = ForkServer.open()

    def close(self) -> None:
        """End the fork server; the runners go on."""
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None

    def start(self) -> Child:
        """Start a runner. Raises OSError if the system has no more processes or memory."""
        worker_id = self._config.new_worker_id()
        opened: list[int] = []
        try:
            reading, writing = os.pipe()
            opened += (reading, writing)
            memory = create_shared_memory()
            opened.append(memory)
            started_registry = StartedRegistry(memory)
            process = self._fork((writing, memory)) or self._exec((writing, memory))
            opened.remove(reading)
        finally:
            for descriptor in opened:
                os.close(descriptor)
        with suppress(OSError):
            assert process.stdin is not None
            process.stdin.write(f"{worker_id} {self._verbosity} {writing} {memory} {self._config.dumps()}\n")
            process.stdin.flush()
        return Child(worker_id, process, started_registry, StallDetector(self._config, started_registry), reading)

    def _fork(self, descriptors: Sequence[int]) -> ForkedProcess | None:
        """Fork a runner; None without a fork server. Raises OSError."""
        if self._fork_server is None:
            return None
        listening, speaking = os.pipe()
        try:
            pid = self._fork_server.spawn((listening, *descriptors))
        except OSError:
            os.close(speaking)
            raise
        finally:
            os.close(listening)
        if pid is not None:
            return ForkedProcess(pid, speaking)
        os.close(speaking)  # a runner that was forked all the same finds its control pipe closed and exits
        logger.warning("fork server lost: runners are started from scratch")
        self.close()
        return None

    def _exec(self, descriptors: Sequence[int]) -> subprocess.Popen[str]:
        """Start a runner in a new interpreter. Raises OSError."""
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE,
            "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
        }
        return subprocess.Popen(  # our own interpreter, our own module
            [sys.executable, "-m", "horsies_django.worker.child"],
            stdin=subprocess.PIPE,
            env=environment,
            text=True,
            pass_fds=descriptors,
        )
