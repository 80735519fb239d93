"""Exports this package as of an earlier commit, for the peer that it is compared with."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from .options import Options
from .registry import CHECKOUT
from .venvs import InstallError


def package_path(options: Options) -> Path:
    """Return the directory with the package as of the commit of ``--before``."""
    return options.folder / "commits" / str(options.before).replace("/", "_")


def export_package(options: Options) -> None:
    """Write the package as of the commit. Raises InstallError if git does not know it."""
    command = ["git", "-C", str(CHECKOUT), "archive", "--end-of-options", str(options.before), "horsies_django"]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603  # git of the machine
    if done.returncode:
        raise InstallError(done.stderr.decode(errors="replace").strip().splitlines()[-1])
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(package_path(options), filter="data")
