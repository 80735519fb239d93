"""What only some operating systems have, and what the others use instead.

No other module asks for the system, but ``process_identity`` reads more of /proc.

A supervisor and the processes that it starts need POSIX. Their modules are imported only there: ``supervisor``,
``spawner``, ``forkserver``, ``child``, ``state_files`` and ``fork_safety`` of ``worker``. ``python -m tests.imports``
checks it. Memory is in bytes, and times are seconds.
"""

from __future__ import annotations

import _thread
import getpass
import itertools
import os
import select
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

if sys.platform != "win32":
    import resource

#: Whether there are forks, process groups and the signals of POSIX: everywhere but on Windows.
IS_POSIX: Final = hasattr(os, "fork")

#: Whether runners are forked. On macOS, system libraries may have threads that a fork loses, and no /proc shows them.
IS_LINUX: Final = sys.platform == "linux"


def signals(*names: str) -> list[signal.Signals]:
    """Return those of these signals that the system has."""
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def ignored_signals() -> set[signal.Signals]:
    """Return SIGHUP if the process ignores it, as under nohup: it stays so."""
    return {number for number in signals("SIGHUP") if signal.getsignal(number) == signal.SIG_IGN}


def ends_process(number: signal.Signals) -> bool:
    """Return whether a signal ends this process. Without /proc, code in C that handles it is not noticed."""
    if signal.getsignal(number) != signal.SIG_DFL:
        return False
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return True
    handled = int(status.partition("SigCgt:")[2].split()[0], 16)
    return not handled >> number - 1 & 1


def hold_signal(number: signal.Signals, *, is_held: bool) -> None:
    """Hold a signal that this thread raises, until it is held no more; from elsewhere it arrives. Not on Windows."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK if is_held else signal.SIG_UNBLOCK, {number})


def register_at_fork(**hooks: Callable[[], None]) -> None:
    """Call these around each fork from now on, as :func:`os.register_at_fork` does."""
    if IS_POSIX:
        os.register_at_fork(**hooks)


def interrupt_main() -> None:
    """Raise KeyboardInterrupt in the main thread, on POSIX also if that waits for the system."""
    main = threading.main_thread().ident
    assert main is not None
    if IS_POSIX:
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()


def wait(timeout: float, *, readable: Collection[int] = (), writable: Collection[int] = ()) -> list[int]:
    """Wait at most ``timeout`` seconds until a descriptor can be read or written; return those that can.

    On Windows only for sockets.
    """
    if not IS_POSIX:
        return [*itertools.chain(*select.select(readable, writable, [], timeout))]
    poll = select.poll()  # unlike select(), for any number of descriptors, and in one call of the kernel
    for descriptor in readable:
        poll.register(descriptor, select.POLLIN)
    for descriptor in writable:
        poll.register(descriptor, select.POLLOUT)
    return [descriptor for descriptor, _ in poll.poll(timeout * 1_000)]


def open_nonblocking(descriptor: int) -> tuple[int, Callable[[bytes], int]]:
    """Return a descriptor for the same file, and a function that writes to it without blocking.

    O_NONBLOCK belongs to the open file, which other processes share: pipes and terminals are opened once more. Where
    that is not possible, as without /proc, writes block as usual. Raises OSError on Windows, whose terminals take text.
    """
    if not IS_POSIX:
        raise OSError("no terminals that take bytes")
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode):
        connection = socket.socket(fileno=os.dup(descriptor))
        return connection.fileno(), lambda data: connection.send(data, socket.MSG_DONTWAIT)
    own = -1
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with suppress(OSError):
            own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    own = os.dup(descriptor) if own < 0 else own
    return own, partial(os.write, own)


def create_shared_memory(size: int) -> int:
    """Return a descriptor of memory to share with other processes, filled with zeros. Raises OSError."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("horsies-started")
        os.ftruncate(descriptor, size)
        return descriptor
    with TemporaryFile() as file:
        file.write(bytes(size))
        file.flush()
        return os.dup(file.fileno())


def boot_id() -> str:
    """Return the line that identifies this boot of the machine. Raises OSError without /proc."""
    return Path("/proc/sys/kernel/random/boot_id").read_text()


def resident_bytes_of(pid: int | str) -> int | None:
    """Return the memory of a process; None if it is gone, and without /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None


def resident_bytes() -> int | None:
    """Return the memory of this process; without /proc, the most that it ever took; None on Windows."""
    if sys.platform == "win32":
        return None
    return resident_bytes_of("self") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def system_user() -> str:
    """Return the name of the operating system's user, or its uid if it has no name, as in many containers."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # ImportError: Windows has no table of users
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"
