"""The process of a runner under a supervisor: forked, or ``python -m horsies_django.worker.child``.

Its standard input is the control pipe from the supervisor: first a line with the worker's id and configuration, then
one command per line. The end of the pipe means that the supervisor is dead. The runner then exits too, because no other
process watches it. It leads a process group, which holds the programs that tasks start.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import django
from django.apps import apps

from ..core.platform import ignored_signals, wait

if TYPE_CHECKING:
    from .inbox import Inbox
    from .started_registry import StartedRegistry

#: The exit status of a runner whose supervisor is gone. A supervisor reads why others have exited from shared memory,
#: because a task may end the process with any status.
EXIT_ORPHANED: Final = 70


def main(descriptors: Sequence[int] = ()) -> None:
    """Run the runner that the first line describes.

    A forked process has its ``descriptors``, the pipe and the memory, under other numbers than that line says.
    """
    os.setpgid(0, 0)
    # The supervisor's command decides. A handler, unlike SIG_IGN, is not inherited by programs that tasks start.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    control = ControlPipe()
    if not (line := control.line()):
        os._exit(EXIT_ORPHANED)
    worker_id, verbosity, *numbers, serialized = line.split(" ", 4)
    pipe, memory = descriptors or map(int, numbers)
    for inherited in (pipe, memory):
        os.set_inheritable(inherited, False)  # a task's subprocess must not inherit it
    os.set_blocking(pipe, False)
    if not apps.ready:
        django.setup()
    from django.core.exceptions import ImproperlyConfigured
    from django.db import connections

    from ..core.signals import runner_stopping
    from . import runner
    from .config import WorkerConfig
    from .console_logging import log_to_console
    from .fork_safety import install_fork_hooks
    from .inbox import Command, Inbox
    from .started_registry import ExitReason, Notice, StartedRegistry
    from .stop_signals import handle_quiet_signals

    log_to_console(int(verbosity))
    install_fork_hooks()
    started_registry = StartedRegistry(memory)
    try:
        config = WorkerConfig.loads(serialized)
    except ImproperlyConfigured as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        started_registry.record_exit(ExitReason.WRONG_DATABASE)
        os._exit(1)
    # Receivers of signals, and a pool, must not be the first to notice that a connection died while it was idle.
    for database in connections.settings.values():
        database["CONN_HEALTH_CHECKS"] = True
    inbox = Inbox()
    # A signal to all processes repeats the supervisor's command.
    for number in {signal.SIGTERM, signal.SIGHUP} - ignored_signals():
        signal.signal(number, lambda *_: inbox.put(Command.STOP))
    handle_quiet_signals(inbox.put)
    threading.Thread(
        target=_read_commands, args=(control, inbox, started_registry), name="horsies-control", daemon=True
    ).start()

    def report(message: ExitReason | Notice) -> bool:
        try:
            return os.write(pipe, f"{message}\n".encode()) > 0
        except BlockingIOError:  # the supervisor is stopped, and has a full pipe to read when it goes on
            return False

    started_registry.record_exit(
        runner.run(config, worker_id, inbox, report, started_registry, verbosity=int(verbosity))
    )
    runner_stopping.send_robust(sender=None)
    # Executions that outlived the shutdown run on daemon threads, on which the interpreter's own exit could crash.
    logging.shutdown()
    os._exit(0)


class ControlPipe:
    """The control pipe, hidden from tasks: their subprocesses must neither read its commands nor wait for its end."""

    def __init__(self) -> None:
        self._descriptor = os.dup(0)
        devnull = os.open(os.devnull, os.O_RDONLY)
        os.dup2(devnull, 0)
        os.close(devnull)
        self._buffer = b""

    def line(self, timeout: float | None = None) -> str | None:
        """Return the next line; "" at the end; None if none arrives within ``timeout`` seconds."""
        while b"\n" not in self._buffer:
            if timeout is not None and not wait(timeout, readable=[self._descriptor]):
                return None
            if not (piece := os.read(self._descriptor, 65_536)):
                return ""
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()


def _read_commands(control: ControlPipe, inbox: Inbox, started_registry: StartedRegistry) -> None:
    """Put the supervisor's commands into the inbox; record a pulse each second if the producer and the log go on."""
    from .console_logging import accepts_records
    from .inbox import Command
    from .started_registry import PULSE_INTERVAL

    while True:
        if inbox.progress.is_made() and accepts_records(PULSE_INTERVAL):
            started_registry.record_pulse()
        command = control.line(PULSE_INTERVAL)
        if command == "":
            os.killpg(0, signal.SIGKILL)  # this process and the programs that its tasks have started
        if command is not None:
            inbox.put(Command[command])


if __name__ == "__main__":
    main()
