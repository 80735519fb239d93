"""``--reload``: restarts a command when the project's code changes, for development.

Django's own autoreloader watches the files. It would run the command in a thread, which gets no signals; so the command
runs in a process of its own here, and can end in peace before it is started again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from django.apps import apps
from django.utils import autoreload

from horsies_django.core.platform import ignored_signals
from horsies_django.worker.stop_signals import STOP_SIGNALS

#: Seconds between two looks at the process and at the files.
_TICK: Final = 0.2


def run_with_reload(flag: str) -> int:
    """Run this process's command line without ``flag`` until it is stopped; restart it when code changes.

    Returns the last exit status. A command that fails is started again after the next change.
    """
    return _Reloader([part for part in autoreload.get_child_arguments() if part != flag]).run()


class _Reloader:
    """Runs a command line, and restarts it after changes."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._has_changed = threading.Event()
        self._is_stopped = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        signal.signal(signal.SIGINT, self._on_interrupt)
        for number in STOP_SIGNALS.keys() - {signal.SIGINT} - ignored_signals():
            signal.signal(number, self._on_terminate)
        self._watch()
        while True:
            self._has_changed.clear()
            status = self._run_once()
            if self._is_stopped or (status == 0 and not self._has_changed.is_set()):
                return status
            if not self._has_changed.is_set():
                sys.stderr.write(f"The worker exited with status {status}. It starts again when code changes.\n")
            while not self._has_changed.wait(_TICK):
                if self._is_stopped:
                    return status

    def _run_once(self) -> int:
        """Run the command until it exits, by itself or because code has changed; return its status."""
        process = self._process = subprocess.Popen(self._command)  # noqa: S603  # this process's own command line
        is_stopping = False
        while True:
            try:
                return process.wait(_TICK)
            except subprocess.TimeoutExpired:
                if self._has_changed.is_set() and not is_stopping:
                    is_stopping = True
                    process.terminate()

    def _watch(self) -> None:
        reloader = autoreload.get_reloader()
        for folder in _project_folders():
            reloader.watch_dir(folder, "**/*.py")
        autoreload.file_changed.connect(self._on_change, weak=False)
        threading.Thread(target=reloader.run_loop, name="horsies-reload", daemon=True).start()

    def _on_change(self, file_path: Path, **_: object) -> bool:
        """Have the command restarted. True keeps Django from exiting this process."""
        if file_path.suffix == ".py":
            if not self._has_changed.is_set():
                sys.stderr.write(f"{file_path} changed: the worker restarts once its running tasks have ended.\n")
            self._has_changed.set()
        return True

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self._is_stopped = True  # Ctrl-C reaches the command too

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        self._is_stopped = True
        if self._process is not None:
            self._process.send_signal(number)


def _project_folders() -> Iterator[Path]:
    """Yield the folders of the project's own apps: those outside of the interpreter's packages."""
    packages = {Path(path).resolve() for path in (sys.prefix, sys.base_prefix)}
    for config in apps.get_app_configs():
        folder = Path(config.path).resolve()
        if not any(folder.is_relative_to(path) for path in packages):
            yield folder
