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


def ensure_venv(peer: Peer, folder: Path, *, renew: bool = False) -> Path:
    """Return the Python of the peer's environment, which is made if it is not there. Raises InstallError."""
    venv_dir = venv_path(peer, folder)
    if renew or not (venv_dir / DONE).exists():
        with _restore_on_failure(venv_dir):
            _install(peer, venv_dir)
    return venv_dir / "bin" / "python"


def venv_path(peer: Peer, folder: Path) -> Path:
    """Return where the peer's environment is, or will be."""
    key = hashlib.sha256(json.dumps([peer.requirements, sys.version]).encode()).hexdigest()[:8]
    return folder / "venvs" / f"{peer.module}-{sys.version_info[0]}{sys.version_info[1]}-{key}"


@contextmanager
def _restore_on_failure(venv_dir: Path) -> Iterator[None]:
    """Bring what was installed before back if the new can not be installed: an environment can't be moved, but back."""
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
    """Return what is installed beside a Python."""
    packages = next((python.parent.parent / "lib").glob("python*/site-packages"))
    return {found.metadata["Name"].lower(): found.version for found in distributions(path=[str(packages)])}
