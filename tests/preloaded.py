"""Processes of ``manage.py`` that fork from one that has imported the project.

A command's imports take 0.8 s of CPU, and the suite starts hundreds. A process that forks is the same in all else: it
has a session, an environment, a standard output and an exit status of its own, and pytest is its parent.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Option of Linux's prctl().
SET_CHILD_SUBREAPER = 36


class Forked(subprocess.Popen[str]):
    """A child of this process that another has forked."""

    def __init__(self, arguments: tuple[str, ...], pid: int, output: int) -> None:
        self.args, self.pid, self.returncode = arguments, pid, None
        self.stdin, self.stdout, self.stderr = None, os.fdopen(output), None
        self._child_created, self._waitpid_lock = True, threading.Lock()
        self._sigint_wait_secs = 0.0


class Parent:
    """A process that has imported the project, started once it is needed."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None

    def start(self, arguments: tuple[str, ...], environment: Mapping[str, str]) -> Forked:
        """Fork a command that reads its settings in this environment."""
        line = self._line = self._line or self._begin()
        reading, writing = os.pipe()
        _become_subreaper(1)  # a command whose parent ends comes to us
        try:
            socket.send_fds(line, [json.dumps([arguments, dict(environment)]).encode()], [writing])
            pid = int(line.recv(16))
        finally:
            _become_subreaper(0)
            os.close(writing)
        return Forked(arguments, pid, reading)

    def _begin(self) -> socket.socket:
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.preloaded", str(theirs.fileno())],
                cwd=Path(__file__).parent.parent,
                env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONWARNINGS": "default"},
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,
            )
        return line

    def close(self) -> None:
        """End it; the commands go on."""
        if self._line:
            self._line.close()
            self._process.wait()


def _become_subreaper(value: int) -> None:
    nothing = ctypes.c_ulong(0)
    assert ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, ctypes.c_ulong(value), nothing, nothing, nothing) == 0


def _serve(line: socket.socket) -> tuple[list[str], dict[str, str]]:
    """Fork for each request; return its arguments and its environment in the command that was forked."""
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
        arguments, environment = json.loads(message)
        return arguments, environment


def _preload() -> Any:
    import gc
    import pkgutil

    import django
    from django.core.management import ManagementUtility, call_command

    django.setup()
    import horsies_django.management.commands as commands
    from horsies_django.worker.code_version import fingerprint

    for module in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}."):
        importlib.import_module(module.name)
    call_command("check", verbosity=0)  # imports the URLs and the admin
    fingerprint()
    sys.stdout.flush()  # or each command would write what is in it
    gc.collect()
    return ManagementUtility


def _read_settings(environment: Mapping[str, str]) -> None:
    """Read the settings anew, and forget what was made by the old ones: connections and backends."""
    from asgiref.local import Local
    from django.apps import apps
    from django.conf import settings
    from django.core.signals import setting_changed
    from django.db import connections

    os.environ.clear()
    os.environ.update(environment)
    for name in ("testproject.settings", "tests.settings"):
        importlib.reload(sys.modules[name])
    settings._setup()
    connections.settings = connections.configure_settings(None)
    connections._connections = Local(connections.thread_critical)
    setting_changed.send(sender=None, setting="TASKS", value=settings.TASKS, enter=True)
    apps.get_app_config("jobs").ready()


def main() -> None:
    """Import all that a command imports, then fork one for each request, which ends as ``manage.py`` does."""
    utility = _preload()
    arguments, environment = _serve(socket.socket(fileno=int(sys.argv[1])))
    _read_settings(environment)
    sys.argv = ["manage.py", *arguments]
    utility(sys.argv).execute()


if __name__ == "__main__":
    main()
