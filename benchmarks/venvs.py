"""Creates a virtual environment for each peer and reuses it in later runs."""

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

#: A file that marks a complete installation.
DONE = "installed.json"


class InstallError(Exception):
    """A peer could not be installed."""


def ensure_venv(peer: Peer, folder: Path, *, renew: bool = False) -> Path:
    """Return the Python of the peer's environment; create it if it is missing. Raises InstallError."""
    venv_dir = venv_path(peer, folder)
    if renew or not (venv_dir / DONE).exists():
        with restore_on_failure(venv_dir):
            _install(peer, venv_dir)
    return venv_dir / "bin" / "python"


def venv_path(peer: Peer, folder: Path) -> Path:
    """Return the directory of the peer's environment."""
    key = hashlib.sha256(json.dumps([peer.requirements, sys.version]).encode()).hexdigest()[:8]
    return folder / "venvs" / f"{peer.module}-{sys.version_info[0]}{sys.version_info[1]}-{key}"


@contextmanager
def restore_on_failure(venv_dir: Path) -> Iterator[None]:
    """Restore the previous environment if the block, which creates a new one, fails.

    The new environment is created in its final place, because environments can't be moved.
    """
    backup = venv_dir.with_name(f"{venv_dir.name}.old")
    if (venv_dir / DONE).exists():
        shutil.rmtree(backup, ignore_errors=True)
        venv_dir.rename(backup)
    try:
        yield
    except BaseException:
        shutil.rmtree(venv_dir, ignore_errors=True)
        if backup.exists():
            backup.rename(venv_dir)
        raise
    shutil.rmtree(backup, ignore_errors=True)


def _install(peer: Peer, venv_dir: Path) -> None:
    venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(venv_dir)
    command = [str(venv_dir / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *peer.requirements], text=True, capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        raise InstallError(next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "pip"))
    (venv_dir / DONE).write_text(json.dumps(peer.requirements))


def versions(python: Path) -> dict[str, str]:
    """Return the versions of the packages in the environment of a Python."""
    packages = next((python.parent.parent / "lib").glob("python*/site-packages"))
    return {found.metadata["Name"].lower(): found.version for found in distributions(path=[str(packages)])}
