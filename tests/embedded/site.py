"""A site in processes of its own, with a worker in its threads."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from django.db import OperationalError
from django.db.models import F

from horsies_django.models import Lease, Worker
from tests.conftest import ROOT, database_url, wait_until

SETTINGS = """
import json, os
from tests.settings import *
from tests.settings import TASKS
TASKS["default"]["OPTIONS"] |= json.loads(os.environ["SITE_OPTIONS"])
"""

WSGI = """
from django.core.wsgi import get_wsgi_application
from horsies_django import embedded

application = get_wsgi_application()
embedded.start(threads=2)
"""

ASGI = WSGI.replace("wsgi", "asgi")

#: Another name of the host, for the processes that find this module on their path.
OTHER_HOST = """
import os, socket
socket.gethostname = lambda: os.environ["SITE_HOST"]
"""

PYTHON = (sys.executable, "-m", "django")


class Site:
    """A command that serves a site, and the processes that it starts."""

    def __init__(self, folder: Path, *command: str, host: str = "", **options: Any) -> None:
        (folder / "site_settings.py").write_text(SETTINGS)
        (folder / "site_wsgi.py").write_text(WSGI)
        (folder / "site_asgi.py").write_text(ASGI)
        path = [str(folder), str(ROOT)]
        if host:
            (folder / "host").mkdir(exist_ok=True)
            (folder / "host" / "sitecustomize.py").write_text(OTHER_HOST)
            path.insert(0, str(folder / "host"))
        self.settings = folder / "site_settings.py"
        self._log = folder / f"log-{len(list(folder.glob('log-*')))}"
        environment = {
            **os.environ,
            "DATABASE_URL": database_url(),
            "DJANGO_SETTINGS_MODULE": "site_settings",
            "HOME": str(folder),
            "PYTHONPATH": os.pathsep.join(path),
            "SITE_HOST": host,
            "SITE_OPTIONS": json.dumps(options),
            "TEST_MODULES": "tests.embedded.jobs",
        }
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def output(self) -> str:
        """What the processes have written so far."""
        return self._log.read_text()

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until the output has a text so often."""
        wait_until(lambda: self.output.count(text) >= count, what=f"{text!r} in: {self.output}")

    def stand_still(self) -> None:
        """Stop the process for now, but not while it has locked an SQLite database for writing."""

        def is_free() -> bool:
            self.process.send_signal(signal.SIGSTOP)
            with contextlib.suppress(OperationalError):
                return Lease.objects.update(name=F("name")) > 0
            self.process.send_signal(signal.SIGCONT)
            return False

        wait_until(is_free)

    def kill(self) -> None:
        """Kill all processes at once, as a machine that goes down."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


Start = Callable[..., Site]


@contextlib.contextmanager
def sites(folder: Path) -> Iterator[Start]:
    """Yield a function that starts a site; kill all of them in the end."""
    with contextlib.ExitStack() as stack:

        def start(*command: str, **options: Any) -> Site:
            site = Site(folder, *command, **options)
            stack.callback(lambda: print(site.output))  # shown if the test fails
            stack.callback(site.kill)
            return site

        yield start


def runserver(*flags: str) -> tuple[str, ...]:
    """Return the command that serves the site in development, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return (*PYTHON, "runserver", f"127.0.0.1:{probe.getsockname()[1]}", *flags)


def serve_runserver(start: Start, **options: Any) -> Site:
    """Start the development server, without its reloader, and wait until its worker is ready."""
    site = start(*runserver("--noreload"), embedded={"when": "runserver"}, **options)
    site.wait_for("worker ready")
    return site


def worker_pid() -> int:
    """Return the process of the only worker, once there is one."""
    (pid,) = wait_until(lambda: list(Worker.objects.values_list("pid", flat=True)), what="a worker")
    return int(pid)
