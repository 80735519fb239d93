"""Installs peers from npm, each into a folder of its own, and reuses them in later runs."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

from .registry import Peer
from .venvs import DONE, InstallError, restore_on_failure


def ensure_packages(peer: Peer, folder: Path, *, renew: bool = False) -> Path:
    """Return a link to Node in the peer's folder; install the packages if they are missing. Raises InstallError."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise InstallError("it needs Node.js, and no node and npm were found")
    packages_dir = packages_path(peer, folder, node)
    if renew or not (packages_dir / DONE).exists():
        with restore_on_failure(packages_dir):
            _install(peer, packages_dir, node, npm)
    return packages_dir / "bin" / "node"


def packages_path(peer: Peer, folder: Path, node: str) -> Path:
    """Return the folder of the peer's packages, whose versions may depend on that of Node."""
    version = subprocess.run([node, "--version"], text=True, capture_output=True, check=True).stdout  # noqa: S603
    key = hashlib.sha256(json.dumps([peer.requirements, version]).encode()).hexdigest()[:8]
    return folder / "npm" / f"{peer.module}-{key}"


def _install(peer: Peer, packages_dir: Path, node: str, npm: str) -> None:
    """Install the first of the requirements that runs on this version of Node."""
    shutil.rmtree(packages_dir, ignore_errors=True)
    (packages_dir / "bin").mkdir(parents=True)
    (packages_dir / "bin" / "node").symlink_to(node)
    (packages_dir / "package.json").write_text('{"private": true}')
    errors = ""
    for requirement in peer.requirements:
        command = [npm, "install", "--engine-strict", "--no-audit", "--no-fund", "--loglevel", "error", requirement]
        done = subprocess.run(command, cwd=packages_dir, text=True, capture_output=True, check=False)  # noqa: S603
        if not done.returncode:
            (packages_dir / DONE).write_text(json.dumps(requirement))
            return
        errors = done.stderr
    lines = [line for line in errors.splitlines() if line.startswith("npm error") and "log" not in line]
    raise InstallError(lines[-1] if lines else "npm")


def versions(node: Path) -> dict[str, str]:
    """Return the versions of the packages beside a Node."""
    lock = node.parent.parent / "node_modules" / ".package-lock.json"
    packages = json.loads(lock.read_text())["packages"]
    return {name.removeprefix("node_modules/"): found["version"] for name, found in packages.items()}
