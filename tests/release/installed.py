"""The package as pip has installed it, in an environment that can't see the checkout."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.docs.terminal import NOT_INHERITED, Terminal

#: Seconds that a command may take.
LIMIT = 300


class Installed:
    """A virtual environment in a folder of its own."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder, self.python = folder, python
        self.environment = clean() | {
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "error::DeprecationWarning:horsies_django,error::RuntimeWarning",
        }

    def terminal(self, folder: Path) -> Terminal:
        """Open a terminal in which the environment is active."""
        return Terminal(folder, self.environment)

    def run(self, arguments: Sequence[object], folder: Path, status: int = 0) -> str:
        """Run its Python in this folder and return the output."""
        return run([self.python, *arguments], folder, self.environment, status)

    def evaluate(self, code: str, folder: Path) -> str:
        """Run Python code in this folder and return what it prints."""
        return self.run(["-c", code], folder).strip()


def clean() -> dict[str, str]:
    """Return the variables of a new terminal."""
    return {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}


def run(command: Sequence[object], folder: Path, environment: dict[str, str] | None = None, status: int = 0) -> str:
    """Run a command and return its output; fail the test if its exit status is another one."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment or clean(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == status, f"{command}\nexit status {done.returncode}\n{done.stdout}"
    return done.stdout
