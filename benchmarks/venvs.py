"""A virtual environment for each peer, kept from run to run."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path

from .registry import Peer

#: The file in it that says it is whole.
DONE = "installed.json"


class InstallError(Exception):
    """pip could not install a peer."""


def environment(peer: Peer, folder: Path, *, renew: bool = False) -> Path:
    """Return the Python of the peer's environment, which is made if it is not there. Raises InstallError."""
    home = home_of(peer, folder)
    if renew or not (home / DONE).exists():
        with _old_kept_aside(home):
            _install(peer, home)
    return home / "bin" / "python"


def home_of(peer: Peer, folder: Path) -> Path:
    """Return where the peer's environment is, or will be."""
    key = hashlib.sha256(json.dumps([peer.requirements, sys.version]).encode()).hexdigest()[:8]
    return folder / "venvs" / f"{peer.module}-{sys.version_info[0]}{sys.version_info[1]}-{key}"


@contextmanager
def _old_kept_aside(home: Path) -> Iterator[None]:
    """Bring what was installed before back if the new can not be installed: an environment can't be moved, but back."""
    aside = home.with_name(f"{home.name}.old")
    if (home / DONE).exists():
        shutil.rmtree(aside, ignore_errors=True)
        home.rename(aside)
    try:
        yield
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        if aside.exists():
            aside.rename(home)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _install(peer: Peer, home: Path) -> None:
    venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(home)
    command = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *peer.requirements], text=True, capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        raise InstallError(next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "pip"))
    (home / DONE).write_text(json.dumps(peer.requirements))


def versions(python: Path) -> dict[str, str]:
    """Return what is installed beside a Python."""
    packages = next((python.parent.parent / "lib").glob("python*/site-packages"))
    return {found.metadata["Name"].lower(): found.version for found in distributions(path=[str(packages)])}
