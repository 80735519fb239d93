"""The signals that stop a command, and those that make a worker quiet.

The first stop signal stops the command in order, and it ends within a limited time. The main thread may wait for a
statement that the database does not answer. So another thread receives the signals too, and ends the process when the
time is up. SIGTSTP makes a worker quiet, and SIGCONT resumes it.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import islice
from typing import Any, Final, Self

from ..core.platform import IS_POSIX, ignored_signals, interrupt_main, register_at_fork, signals
from .console_logging import LogThread
from .inbox import Command

logger = logging.getLogger("horsies_django.worker")

#: The signals, and for how many stops each counts: SIGQUIT stops at once. Windows has Ctrl-C and Ctrl-Break (SIGBREAK).
STOP_SIGNALS: Final[dict[int, int]] = {
    number: 2 if number.name == "SIGQUIT" else 1
    for number in signals("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGBREAK")
}

#: Seconds that the database has, once all runners are gone, to recover their tasks; and after a second signal. A reaper
#: recovers what is left then.
LEAVE_TIMEOUT: Final = 10.0
ABORT_TIMEOUT: Final = 3.0

#: Seconds to wait for the last log line, which blocks while the pipe behind it is full.
_LOGGING: Final = 1.0


@contextmanager
def stop_signals(stop: Callable[[], None], *timeouts: float, owns_process: bool = False) -> Iterator[None]:
    """Call ``stop`` for each SIGTERM, SIGINT and SIGHUP in this block, and twice for a SIGQUIT.

    A SIGHUP that the process ignores from its start, as under nohup, stays ignored.
    ``timeouts`` are the seconds that the block may take after the first signal, and after the second. When they have
    passed, the process exits with status 1 if it ``owns_process``, whatever the main thread waits for; otherwise the
    main thread gets KeyboardInterrupt, and again with each further signal. Without ``timeouts`` the time is unlimited.
    Outside the main thread, which alone receives signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    own = os.getpid()
    with _Deadline(timeouts, owns_process=owns_process) if timeouts else nullcontext() as deadline:

        def handle(number: int, _: object) -> None:
            if os.getpid() != own:  # forked by a task's function, perhaps without install_fork_hooks()
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
                return
            if deadline is not None:
                deadline.on_signal(number)
            for _ in range(STOP_SIGNALS[number]):
                stop()

        before: dict[int, Any] = {
            number: signal.signal(number, handle) for number in STOP_SIGNALS.keys() - ignored_signals()
        }
        if timeouts:  # otherwise nothing has begun that could fork
            _register_fork_hook()  # after the hooks of the deadline, because the last hook decides
            _handlers_of_children.update(before)
        try:
            yield
        finally:
            _handlers_of_children.clear()
            for number, handler in before.items():
                signal.signal(number, handler)


def starting(*, owns_process: bool) -> AbstractContextManager[None]:
    """In this block, in which nothing has begun, a signal ends a process with status 0 if the command owns it."""
    return stop_signals(functools.partial(os._exit, 0)) if owns_process else nullcontext()


#: The handlers that a process gets which is forked in the block: those from before it. ``handle`` would do as a default
#: handler does, but Python runs it late: a signal just before a sleep waits for the end of the sleep.
_handlers_of_children: Final[dict[int, Any]] = {}


@functools.cache
def _register_fork_hook() -> None:
    register_at_fork(after_in_child=_restore_handlers)


def _restore_handlers() -> None:
    for number, handler in _handlers_of_children.items():
        if handler is not None:  # None was not set by Python, which can't set it again
            signal.signal(number, handler)


class _Deadline:
    """A thread that ends the work of the main thread when the time is up."""

    def __init__(self, timeouts: Sequence[float], *, owns_process: bool) -> None:
        self._timeouts = iter(timeouts)
        self._owns_process = owns_process
        self._has_passed = False
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="horsies-deadline", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if self._owns_process:
            if IS_POSIX:  # a signal to a forked process would be written to this socket
                from .fork_safety import install_fork_hooks

                install_fork_hooks()
            # Python runs its own handlers between two steps of the main thread, and one step may take long.
            self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._owns_process:
            signal.set_wakeup_fd(self._wakeup)
        self._reader.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._reader.close()
        self._writer.close()

    def on_signal(self, number: int) -> None:
        """Count a signal. Raises KeyboardInterrupt when the time is up."""
        if self._has_passed:
            raise KeyboardInterrupt
        if not self._owns_process:
            with suppress(BlockingIOError):
                self._writer.send(bytes([number]))

    def _run(self) -> None:
        ends_at = float("inf")
        while True:
            left = ends_at - time.monotonic()
            self._reader.settimeout(None if ends_at == float("inf") else max(0.001, left))
            try:
                received = self._reader.recv(64)
            except TimeoutError:
                break
            if not received:
                return
            for number in received:  # other signals may be among them
                for timeout in islice(self._timeouts, STOP_SIGNALS.get(number, 0)):
                    ends_at = min(ends_at, time.monotonic() + timeout)
        self._has_passed = True
        if self._owns_process:
            last = threading.Thread(target=self._log, daemon=True)
            last.start()
            last.join(_LOGGING)
            os._exit(1)
        interrupt_main()

    def _log(self) -> None:
        logger.error("command did not stop in time: its process exits, and a reaper recovers its tasks")
        for log_thread in logger.filters:
            if isinstance(log_thread, LogThread):
                log_thread.close()
        logging.shutdown()


def handle_quiet_signals(send: Callable[[Command], None]) -> dict[int, Any]:
    """Have SIGTSTP and SIGCONT send their commands from now on; return the handlers from before.

    A suspended process gets SIGCONT too, so that resumes only what SIGTSTP has made quiet.
    """
    is_quiet = False

    def handle(number: int, _: object) -> None:
        nonlocal is_quiet
        suspends = signal.Signals(number).name == "SIGTSTP"
        if suspends or is_quiet:
            is_quiet = suspends
            send(Command.QUIET if is_quiet else Command.RESUME)

    return {number: signal.signal(number, handle) for number in signals("SIGTSTP", "SIGCONT")}


@contextmanager
def quiet_signals(send: Callable[[Command], None], *, owns_process: bool) -> Iterator[None]:
    """Have SIGTSTP and SIGCONT send their commands in this block, if the process runs nothing but this worker."""
    if not owns_process or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = handle_quiet_signals(send)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
