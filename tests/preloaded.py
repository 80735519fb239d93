"""Processes of ``manage.py`` that fork from one that has imported the project.

A command's imports take 0.8 s of CPU, and the suite starts hundreds. A forked process is otherwise the
same: it has its own session, environment, standard output and exit status, and pytest is its parent.
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
    """A child of this process that another process has forked."""

    def __init__(self, arguments: tuple[str, ...], pid: int, output: int) -> None:
        self.args, self.pid, self.returncode = arguments, pid, None
        self.stdin, self.stdout, self.stderr = None, os.fdopen(output), None
        self._child_created, self._waitpid_lock = True, threading.Lock()
        self._sigint_wait_secs = 0.0


class Parent:
    """A process that has imported the project; it starts with the first command."""

    def __init__(self) -> None:
        self._channel: socket.socket | None = None

    def start(self, arguments: tuple[str, ...], environment: Mapping[str, str]) -> Forked:
        """Fork a command with this environment."""
        channel = self._channel = self._channel or self._begin()
        reading, writing = os.pipe()
        _become_subreaper(1)  # this process adopts a command whose parent ends
        try:
            socket.send_fds(channel, [json.dumps([arguments, dict(environment)]).encode()], [writing])
            pid = int(channel.recv(16))
        finally:
            _become_subreaper(0)
            os.close(writing)
        return Forked(arguments, pid, reading)

    def _begin(self) -> socket.socket:
        channel, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.preloaded", str(child_end.fileno())],
                cwd=Path(__file__).parent.parent,
                env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONWARNINGS": "default"},
                pass_fds=[child_end.fileno()],
                stdout=subprocess.DEVNULL,
            )
        return channel

    def close(self) -> None:
        """End the process; its commands continue."""
        if self._channel:
            self._channel.close()
            self._process.wait()


def _become_subreaper(value: int) -> None:
    zero = ctypes.c_ulong(0)
    assert ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, ctypes.c_ulong(value), zero, zero, zero) == 0


def _serve(channel: socket.socket) -> tuple[list[str], dict[str, str]]:
    """Fork a command for each request; in the command, return its arguments and its environment."""
    while True:
        message, descriptors, *_ = socket.recv_fds(channel, 65536, 1)
        if not message:
            sys.exit(0)
        reading, writing = os.pipe()
        if intermediate := os.fork():
            os.close(writing)
            os.waitpid(intermediate, 0)
            channel.send(os.read(reading, 16))
            os.close(reading)
            os.close(descriptors[0])
            continue
        if pid := os.fork():
            os.write(writing, str(pid).encode())
            os._exit(0)
        for descriptor in (reading, writing):
            os.close(descriptor)
        channel.close()
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
    sys.stdout.flush()  # or each command would write what is buffered
    gc.collect()
    gc.freeze()  # a collection in a command would copy the pages that it shares with this process
    return ManagementUtility


def _read_settings(environment: Mapping[str, str]) -> None:
    """Reload the settings, and drop the connections and backends of the old ones."""
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
    """Import all that a command imports, then fork one for each request; it ends as ``manage.py`` does."""
    utility = _preload()
    arguments, environment = _serve(socket.socket(fileno=int(sys.argv[1])))
    _read_settings(environment)
    sys.argv = ["manage.py", *arguments]
    utility(sys.argv).execute()


if __name__ == "__main__":
    main()
