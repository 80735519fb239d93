"""The fork server: a process from which runners are forked, so that they share the memory of imported modules.

It is forked from the supervisor before that has a connection or a second thread, and does nothing but fork: whatever a
fork must not copy never exists there. A runner becomes the supervisor's own child, so nothing depends on the fork
server any more: once it is lost, or where it can't run, runners start in a new interpreter.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn, Self

from django.db import connections

from ..core.platform import ignored_signals
from . import child

#: Seconds that a fork may take. It takes milliseconds, but a stopped fork server must not hold up the supervisor.
SPAWN_TIMEOUT: Final = 2.0

_THREADS: Final = Path("/proc/self/task")

#: Options of Linux's prctl().
_SET_NAME: Final = 15
_SET_CHILD_SUBREAPER: Final = 36


class ForkedProcess:
    """A forked runner, with the part of subprocess.Popen that its supervisor needs."""

    def __init__(self, pid: int, control: int) -> None:
        self.pid = pid
        self.stdin = os.fdopen(control, "w")
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait for the process to end; ``returncode`` is then what Popen's would be."""
        status = 0  # of a process that the project's own handler of SIGCHLD has reaped
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:  # until here no other process can get its pid
            with suppress(ChildProcessError):
                status = os.waitpid(self.pid, 0)[1]
            self.returncode = os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        """Kill the process."""
        with self._lock:
            if self.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """The supervisor's end of the fork server."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self._pid = pid
        self._socket = connection
        self._socket.settimeout(SPAWN_TIMEOUT)

    @classmethod
    def open(cls) -> Self | None:
        """Start a fork server; None if this process can't be forked safely."""
        if not _may_fork():
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # otherwise both processes would write what is in it
        gc.collect()
        _trim_heap()
        gc.freeze()  # a collection writes to the objects it visits, and pages that are written to are shared no more
        pid = os.fork()
        if not pid:
            ours.close()
            _serve(theirs)
        theirs.close()
        return cls(pid, ours)

    def spawn(self, descriptors: Sequence[int]) -> int | None:
        """Fork a runner with these descriptors, the first as its standard input; return its pid.

        Returns None if the server is lost. Raises OSError if the system has no more processes.
        """
        try:
            _prctl(_SET_CHILD_SUBREAPER, 1)  # a runner whose parent ends becomes our child
            socket.send_fds(self._socket, [b"one more"], descriptors)
            answer = self._socket.recv(16)
        except OSError:
            return None
        finally:
            _prctl(_SET_CHILD_SUBREAPER, 0)
        if not answer:
            return None
        if not (pid := int(answer)):
            raise OSError("fork has failed")
        return pid

    def close(self) -> None:
        """End the fork server; the runners go on."""
        self._socket.close()
        with suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _may_fork() -> bool:
    """Whether this process has one thread, of Python or not, and no connection of any kind."""
    if not _THREADS.exists() or len(list(_THREADS.iterdir())) > 1:
        return False
    is_connected = any(connection.connection is not None for connection in connections.all(initialized_only=True))
    if _has_sockets():
        return False
    ignores_children = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN  # inherited from a parent process
    return not is_connected and not ignores_children and _prctl(_SET_CHILD_SUBREAPER, 0)


def _has_sockets() -> bool:
    """Whether the project's code has opened a socket, which runners must not share.

    The first three descriptors, and copies of them, may be the journal's.
    """
    files = {}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the descriptor of the listing itself is gone
            files[descriptor] = os.readlink(f"/proc/self/fd/{descriptor}")
    standard = {files.get(descriptor) for descriptor in range(3)}
    return any(file.startswith("socket:") and file not in standard for file in files.values())


def _trim_heap() -> None:
    """Give free memory back to the system. Only glibc can."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def _prctl(option: int, value: int | bytes) -> bool:
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    nothing = ctypes.c_ulong(0)
    error: int = ctypes.CDLL(None).prctl(option, argument, nothing, nothing, nothing)
    return error == 0


def _serve(connection: socket.socket) -> NoReturn:
    """Fork on request until the supervisor closes the socket."""
    try:
        # Signals to the whole group are meant for the other processes.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        for number in {signal.SIGQUIT, signal.SIGHUP} - ignored_signals():
            signal.signal(number, lambda *_: None)  # runners would inherit SIG_IGN, which for SIGHUP has a meaning
        _prctl(_SET_NAME, b"horsies-forker")
        while True:
            message, descriptors, *_ = socket.recv_fds(connection, 16, 8)
            if not message:
                os._exit(0)
            try:
                answer = _spawn(connection, descriptors)
            except OSError:
                answer = b"0"
            for descriptor in descriptors:
                os.close(descriptor)
            connection.send(answer)
    except BaseException:  # noqa: BLE001  # nothing may return into the supervisor's code
        traceback.print_exc()
    finally:
        os._exit(1)


def _spawn(connection: socket.socket, descriptors: Sequence[int]) -> bytes:
    """Fork a runner through an intermediate process that exits at once, and return the runner's pid."""
    reading, writing = os.pipe()
    try:
        intermediate = os.fork()
        if not intermediate:
            _start_child(connection, descriptors, (reading, writing))
        with suppress(ChildProcessError):  # the project's own handler of SIGCHLD has reaped it
            os.waitpid(intermediate, 0)
        os.set_blocking(reading, False)
        with suppress(BlockingIOError):
            return os.read(reading, 16)
        return b"0"
    finally:
        os.close(reading)
        os.close(writing)


def _start_child(connection: socket.socket, descriptors: Sequence[int], pipe: tuple[int, int]) -> NoReturn:
    try:
        if pid := os.fork():
            os.write(pipe[1], str(pid).encode())
            os._exit(0)
        connection.close()
        for end in pipe:
            os.close(end)
        _prctl(_SET_NAME, b"horsies-runner")
        control, *others = descriptors
        if control:
            os.dup2(control, 0)
            os.close(control)
        child.main(others)
    except BaseException:  # noqa: BLE001  # prints the error and exits, as the interpreter would
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)
