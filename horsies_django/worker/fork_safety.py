"""Makes forks by tasks safe: signals have their default effect there, and no forked process outlives its runner."""

from __future__ import annotations

import fcntl
import os
import signal
import threading

from ..core.platform import IS_LINUX, ignored_signals


def install_fork_hooks() -> None:
    """Install hooks for the processes that tasks fork, usually with ``multiprocessing``.

    A forked process would inherit the handlers that stop a runner in order, and ``Process.terminate()`` would have no
    effect. On Linux the forked process also ends with this process, however this ends. A program started with
    ``subprocess`` shares neither handlers nor descriptors: the supervisor kills it with the process group.
    """
    death_pipe = _ParentDeathPipe() if IS_LINUX else None
    stops = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    masks = threading.local()

    def before() -> None:
        masks.old = signal.pthread_sigmask(signal.SIG_BLOCK, stops)

    def after() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.old)

    def after_in_child() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in {signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT} - ignored_signals():
            signal.signal(number, signal.SIG_DFL)
        if death_pipe is not None:
            death_pipe.attach()
        after()  # last: until here the runner's handler would receive a signal, which would be lost

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=after_in_child)


class _ParentDeathPipe:
    """A pipe to which only the runner can write: the kernel kills its readers when the runner is gone.

    A thread that waits for this could not run while other code holds the interpreter's lock, and the kernel's own
    signal for a dead parent comes as soon as the *thread* that has forked ends.
    """

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._inode = os.fstat(self._reading).st_ino
        self._is_writer = True

    def attach(self) -> None:
        """Have this forked process killed when the runner ends.

        A process that closes all its descriptors is exempt.
        """
        try:
            if os.fstat(self._reading).st_ino != self._inode:
                return
            # A file description of its own, because the receiver of the signal belongs to that.
            own = os.open(f"/proc/self/fd/{self._reading}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
            if self._is_writer:  # otherwise the process that has forked this one has closed it
                self._is_writer = False
                os.close(self._writing)  # last: if the runner is dead by now, this kills
        except OSError:  # closed by the code that has forked
            return
