"""Makes this process and its children look like macOS or Windows, as far as Linux can.

``PYTHONPATH=tests/platforms SIMULATE=macos pytest tests/worker`` runs tests without what macOS does not have; the other
name is ``windows``. Python imports this file when it starts. The names are gone for all code, except what the standard
library has read from them before.
"""

import builtins
import importlib
import io
import os
import platform
import select
import selectors
import signal
import socket
import sys
import sysconfig

#: What Linux has and macOS has not, as of Python 3.11.
NOT_ON_MACOS = {
    os: "eventfd eventfd_read eventfd_write memfd_create pidfd_open posix_fallocate posix_fadvise sched_getaffinity "
    "sched_setaffinity splice waitid copy_file_range getrandom pipe2 setresuid prlimit",
    select: "epoll",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo",
}

#: What POSIX systems have and Windows has not, as of Python 3.11; but os.WNOHANG, which subprocess needs here.
NOT_ON_WINDOWS = {
    os: "fork forkpty register_at_fork killpg getpgid getpgrp setpgid setsid getsid wait wait3 wait4 WNOWAIT "
    "WEXITED P_PID P_ALL fchmod fchown chown lchown pread pwrite getuid geteuid getgid getegid nice getpriority "
    "setpriority sysconf mkfifo O_NOFOLLOW O_NONBLOCK O_NOCTTY O_CLOEXEC set_blocking getloadavg ctermid uname",
    select: "poll",
    signal: "pthread_kill pthread_sigmask sigwait sigpending siginterrupt alarm setitimer getitimer pause SIGALRM "
    "SIGCHLD SIGCONT SIGHUP SIGKILL SIGQUIT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGUSR1 SIGUSR2 SIGPIPE",
    socket: "send_fds recv_fds SOCK_SEQPACKET MSG_DONTWAIT",
}

#: Modules that Windows has not.
NO_MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")

#: Folders that neither has.
NO_FOLDERS = ("/proc", "/dev/shm")


#: Modules of the standard library that choose by the platform when they are imported: they must go on to work on Linux.
LOADED_BEFORE = (
    "asyncio concurrent.futures.process ctypes.util getpass logging.handlers mimetypes multiprocessing.context "
    "multiprocessing.popen_spawn_posix multiprocessing.resource_tracker platform shutil subprocess sysconfig tempfile "
    "urllib.request uuid webbrowser zoneinfo"
)


def load_standard_library():
    for name in LOADED_BEFORE.split():
        importlib.import_module(name)
    platform.uname()
    sysconfig.get_config_vars()


def hide_folders():
    """Have /proc be missing for whatever opens, lists or asks for a file."""

    def missing(path):
        if isinstance(path, os.PathLike):
            path = path.__fspath__()
        return isinstance(path, str) and any(f"{path}/".startswith(f"{folder}/") for folder in NO_FOLDERS)

    def hidden(function):
        def call(path, *arguments, **options):
            if missing(path):
                raise FileNotFoundError(2, "hidden by tests/platforms", str(path))
            return function(path, *arguments, **options)

        return call

    for module, names in ((os, "access listdir lstat open readlink scandir stat"), (builtins, "open")):
        for name in names.split():
            setattr(module, name, hidden(getattr(module, name)))
    io.open = builtins.open  # pathlib's


def remove(names_by_module):
    for module, names in names_by_module.items():
        for name in names.split():
            vars(module).pop(name, None)


def refuse_to_fork():
    raise AssertionError("macOS has fork(), but its own libraries may have threads that do not survive it")


def simulate_macos():
    remove(NOT_ON_MACOS)
    os.fork = refuse_to_fork
    sys.platform = "darwin"
    selectors.DefaultSelector = selectors.PollSelector


def simulate_windows():
    remove(NOT_ON_MACOS)
    remove(NOT_ON_WINDOWS)
    for name in NO_MODULES:
        sys.modules[name] = None
    sys.platform = "win32"
    selectors.DefaultSelector = selectors.SelectSelector
    handle = signal.signal
    allowed = {signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGINT, signal.SIGSEGV, signal.SIGTERM}

    def checked(number, handler):
        if number not in allowed:
            raise ValueError("invalid signal value")
        return handle(number, handler)

    signal.signal = checked


if system := os.environ.get("SIMULATE"):
    os.environ["HYPOTHESIS_NO_PLUGINS"] = "1"  # those of other libraries refuse these systems
    os.environ["PYTEST_ADDOPTS"] = "--capture=sys"  # the other way needs Windows's own io module
    load_standard_library()
    hide_folders()
    {"macos": simulate_macos, "windows": simulate_windows}[system]()
