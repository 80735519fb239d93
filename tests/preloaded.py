"""Processes of ``manage.py`` that fork from one that has imported the project.

A command's imports take 0.8 s of CPU, and the suite starts hundreds. A process that forks is the same in all else: it
has a session, an environment, a standard output and an exit status of its own, and pytest is its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

#: Option of Linux's prctl().
SET_CHILD_SUBREAPER = 36

#: Environments for which a parent is kept ready.
KEPT = 3


class Forked(subprocess.Popen[str]):
    """A child of this process that another has forked."""

    def __init__(self, arguments: tuple[str, ...], pid: int, output: int) -> None:
        self.args, self.pid, self.returncode = arguments, pid, None
        self.stdin, self.stdout, self.stderr = None, os.fdopen(output), None
        self._child_created, self._waitpid_lock = True, threading.Lock()
        self._sigint_wait_secs = 0.0


class Parent:
    """A process that has imported the project in one environment."""

    def __init__(self, environment: Mapping[str, str], folder: str) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.preloaded", str(theirs.fileno())],
                cwd=folder,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,
            )

    def start(self, arguments: tuple[str, ...]) -> Forked:
        """Fork a command."""
        reading, writing = os.pipe()
        _become_subreaper(1)  # a command whose parent ends comes to us
        try:
            socket.send_fds(self.line, [json.dumps(arguments).encode()], [writing])
            pid = int(self.line.recv(16))
        finally:
            _become_subreaper(0)
            os.close(writing)
        return Forked(arguments, pid, reading)

    def close(self) -> None:
        """End it; the commands go on."""
        self.line.close()
        self.process.kill()
        self.process.wait()


def _become_subreaper(value: int) -> None:
    nothing = ctypes.c_ulong(0)
    assert ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, ctypes.c_ulong(value), nothing, nothing, nothing) == 0


class Parents:
    """The parents that are ready, those used last at the end."""

    def __init__(self) -> None:
        self._ready: dict[frozenset[tuple[str, str]], Parent] = {}

    def start(self, arguments: tuple[str, ...], environment: Mapping[str, str], folder: str) -> Forked:
        """Start a command in this environment."""
        environment = {name: value for name, value in environment.items() if name != "PYTEST_CURRENT_TEST"}
        key = frozenset(environment.items())
        parent = self._ready.pop(key, None) or Parent(environment, folder)
        self._ready[key] = parent
        if len(self._ready) > KEPT:
            self._ready.pop(next(iter(self._ready))).close()
        return parent.start(arguments)

    def close(self) -> None:
        """End them all."""
        while self._ready:
            self._ready.popitem()[1].close()


def _serve(line: socket.socket) -> list[str]:
    """Fork for each request; return its arguments in the command that was forked."""
    while True:
        message, descriptors, *_ = socket.recv_fds(line, 65536, 1)
        if not message:
            sys.exit(0)
        reading, writing = os.pipe()
        if middle := os.fork():
            os.close(writing)
            os.waitpid(middle, 0)
            line.send(os.read(reading, 16))
            os.close(reading)
            os.close(descriptors[0])
            continue
        if pid := os.fork():
            os.write(writing, str(pid).encode())
            os._exit(0)
        for descriptor in (reading, writing):
            os.close(descriptor)
        line.close()
        os.setsid()
        os.dup2(descriptors[0], 1)
        os.dup2(descriptors[0], 2)
        os.close(descriptors[0])
        return json.loads(message)


def _preload() -> Any:
    import gc
    import importlib
    import pkgutil

    import django
    from django.core.management import ManagementUtility, call_command

    django.setup()
    import horsies_django.management.commands as commands
    from horsies_django.worker.versions import fingerprint

    for module in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}."):
        importlib.import_module(module.name)
    call_command("check", verbosity=0)  # imports the URLs and the admin
    fingerprint()
    sys.stdout.flush()  # or each command would write what is in it
    gc.collect()
    return ManagementUtility


def main() -> None:
    """Import all that a command imports, then fork one for each request, which ends as ``manage.py`` does."""
    utility = _preload()
    arguments = _serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv = ["manage.py", *arguments]
    utility(sys.argv).execute()


if __name__ == "__main__":
    main()
