"""Starts runners, forked from the fork server or in a new interpreter, and detects those that are stalled."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from django.conf import settings
from django.core.cache import caches
from django.db import connections

from ..core.cron import cron_problems
from ..core.platform import IS_LINUX, create_shared_memory
from ..core.sync import MAX_WAIT
from ..models.queue_scan import compile_scan
from . import state_files
from .code_version import code_version
from .config import WorkerConfig
from .forkserver import ForkedProcess, ForkServer
from .inbox import Command
from .started_registry import StartedRegistry

#: The shortest silence in seconds that counts as a stall, however short the timeouts: pulses come once a second.
MIN_SILENCE: Final = 3.0

#: The supervisor sends a heartbeat for a runner that has sent none for this many heartbeat intervals.
LATE_FACTOR: Final = 1.25


class StallDetector:
    """Watches the pulse of one runner, for its supervisor.

    Only time during which the supervisor ran counts as silence: two checks that are further apart than the supervisor
    ever waits count as one wait. So runners have their full time to show that they are alive after a machine was
    suspended or a container paused.
    """

    def __init__(self, config: WorkerConfig, started_registry: StartedRegistry) -> None:
        self._started_registry = started_registry
        self._grace = config.timeout_grace
        self._stall_timeout = max(config.max_stall, MIN_SILENCE)
        self._beat_every = config.options.recovery.heartbeat_interval
        self._pulse = 0.0
        self._checked_at = time.monotonic()
        self._silent = 0.0
        self._next_heartbeat = 0.0

    def check(self) -> str | None:
        """Check once; return why the runner has to be killed, or None."""
        passed = min(time.monotonic() - self._checked_at, MAX_WAIT)
        self._checked_at = time.monotonic()
        pulse = self._started_registry.last_pulse
        is_alive, self._pulse = pulse != self._pulse, pulse
        self._silent = 0.0 if is_alive or not pulse else self._silent + passed
        if self._silent >= self._stall_timeout:
            return f"it has not responded for {self._silent:.0f} s"
        if self._silent >= max(self._grace, MIN_SILENCE) and self._started_registry.is_over_limit(self._grace):
            return f"it has not responded for {self._silent:.0f} s, and one of its tasks is over the time limit"
        return None

    @property
    def is_healthy(self) -> bool:
        """Whether the runner is registered and its interpreter ran at the last check, or shortly before."""
        return self._started_registry.is_registered and self._silent < MIN_SILENCE

    @property
    def stalled_at(self) -> float | None:
        """When a registered runner began to stand still; None if it goes on. Monotonic, in seconds."""
        is_stalled = self._started_registry.is_registered and self._silent >= MIN_SILENCE
        return self._checked_at - self._silent if is_stalled else None

    @property
    def heartbeat_at(self) -> float:
        """When the supervisor has to send a heartbeat for the runner; infinite until the runner's first one."""
        last_heartbeat = self._started_registry.last_heartbeat
        return (
            max(last_heartbeat + LATE_FACTOR * self._beat_every, self._next_heartbeat) if last_heartbeat else math.inf
        )

    def is_heartbeat_due(self) -> bool:
        """Whether the supervisor has to send a heartbeat for the runner now."""
        if time.monotonic() < self.heartbeat_at:
            return False
        self._next_heartbeat = time.monotonic() + self._beat_every
        return True


logger = logging.getLogger("horsies_django.worker")

#: Seconds between SIGTERM and SIGKILL.
GROUP_GRACE: Final = 1.0

#: Seconds between two checks whether the group has ended.
_INTERVAL: Final = 0.02


@dataclass(slots=True, eq=False)
class Child:
    """A runner's process as its supervisor sees it.

    ``report_pipe`` delivers its notices, and why it takes no more work.
    """

    worker_id: str
    process: subprocess.Popen[str] | ForkedProcess
    started_registry: StartedRegistry
    stall_detector: StallDetector
    report_pipe: int
    is_killed: bool = False
    is_stalled: bool = False
    is_retiring: bool = False
    is_replaced: bool = False

    @property
    def is_healthy(self) -> bool:
        """Whether it is registered, and neither exits nor stalls."""
        return self.process.returncode is None and not self.is_killed and self.stall_detector.is_healthy

    def send_quiet(self, *, is_quiet: bool) -> None:
        """Have the runner claim nothing more, or claim again. Its replacement will do the same."""
        self.started_registry.record_quiet(is_quiet)
        self.send(Command.QUIET if is_quiet else Command.RESUME)

    def send(self, command: Command) -> None:
        """Send a command to the runner, unless it is gone."""
        with suppress(OSError, ValueError):
            assert self.process.stdin is not None
            self.process.stdin.write(f"{command.name}\n")
            self.process.stdin.flush()

    def kill(self, reason: str) -> None:
        """Kill the process, once."""
        if not self.is_killed:
            self.is_killed = True
            self.process.kill()
            logger.error("runner killed id=%s: %s", self.worker_id, reason)


class Spawner:
    """Starts the runners of one supervisor."""

    def __init__(self, config: WorkerConfig, verbosity: int) -> None:
        self._config = config
        self._verbosity = verbosity
        self._fork_server: ForkServer | None = None

    def open(self) -> None:
        """Start the fork server, while this process has no connection and no second thread."""
        if self._config.fork and IS_LINUX:
            self._load_shared()
            connections.close_all()
            caches.close_all()
            self._fork_server = ForkServer.open()

    def _load_shared(self) -> None:
        """Do once what each runner does when it starts, as far as its results are kept in memory.

        Runners share the memory that this process has filled before the fork. In a runner, each of these steps would
        copy megabytes of shared pages.
        """
        from ..workflows.engine import repair  # noqa: F401  # this imports the whole engine, which others import late

        list(cron_problems("* * * * *"))  # imports croniter
        code_version(self._config.options)
        compile_scan(self._config.database, (False, True))

    def close(self) -> None:
        """End the fork server; the runners go on."""
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None

    def start(self, *, is_quiet: bool = False) -> Child:
        """Start a runner, perhaps a quiet one. Raises OSError if the system has no more processes or memory."""
        worker_id = self._config.new_worker_id()
        opened: list[int] = []
        try:
            report_read, report_write = os.pipe()
            opened += (report_read, report_write)
            folder = self._config.state_dir
            memory = state_files.create(folder, worker_id) if folder else create_shared_memory(StartedRegistry.SIZE)
            opened.append(memory)
            started_registry = StartedRegistry(memory)
            started_registry.record_quiet(is_quiet)
            process = self._fork((report_write, memory)) or self._exec((report_write, memory))
            opened.remove(report_read)
        finally:
            for descriptor in opened:
                os.close(descriptor)
        config = replace(self._config, is_quiet=is_quiet)
        with suppress(OSError):
            assert process.stdin is not None
            process.stdin.write(f"{worker_id} {self._verbosity} {report_write} {memory} {config.dumps()}\n")
            process.stdin.flush()
        return Child(worker_id, process, started_registry, StallDetector(self._config, started_registry), report_read)

    def _fork(self, descriptors: Sequence[int]) -> ForkedProcess | None:
        """Fork a runner; None without a fork server. Raises OSError."""
        if self._fork_server is None:
            return None
        control_read, control_write = os.pipe()
        try:
            pid = self._fork_server.spawn((control_read, *descriptors))
        except OSError:
            os.close(control_write)
            raise
        finally:
            os.close(control_read)
        if pid is not None:
            return ForkedProcess(pid, control_write)
        os.close(control_write)  # a runner that was forked all the same finds its control pipe closed and exits
        logger.warning("fork server lost: runners start in a new interpreter")
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


def kill_process_group(leader: int) -> None:
    """End what is left of the process group of a runner that has ended; return once it is gone or killed.

    The group holds the programs that its tasks have started, except those in a session or a group of their own.
    """
    kill_at = time.monotonic() + GROUP_GRACE
    is_left = _signal_group(leader, signal.SIGTERM)
    while is_left and time.monotonic() < kill_at:
        time.sleep(_INTERVAL)
        is_left = _signal_group(leader, 0)
    if is_left:
        _signal_group(leader, signal.SIGKILL)


def _signal_group(group: int, number: int) -> bool:
    """Send a signal, or with 0 none, to a group; return whether a process of it can get one."""
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass  # in a container this process may be the one that adopts orphans
    try:
        os.killpg(group, number)
    except OSError:  # there is none, or none of ours
        return False
    return True
