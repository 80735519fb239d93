"""The source distribution and the wheel, and fresh virtual environments with the wheel, outside the checkout."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.release.bounds import PROJECT
from tests.release.installed import Installed, run


@pytest.fixture(scope="session")
def tools(tmp_path_factory) -> Path:
    """The Python of an environment with the tools that make and check a release."""
    return make_venv(
        tmp_path_factory.mktemp("tools"), sys._base_executable, *PROJECT["optional-dependencies"]["release"]
    )


@pytest.fixture(scope="session")
def build(tools, tmp_path_factory) -> Callable[[Path], tuple[Path, Path]]:
    """Build the source distribution of a checkout, and from that the wheel."""

    def build(checkout: Path = ROOT) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("dist")
        output = run([tools, "-W", "error", "-m", "build", "--outdir", folder, checkout], folder)
        assert "warning" not in output.lower(), output
        (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
        return sdist, wheel

    return build


@pytest.fixture(scope="session")
def distributions(build) -> tuple[Path, Path]:
    """The source distribution and the wheel of this checkout."""
    return build()


@pytest.fixture(scope="session")
def install(tmp_path_factory) -> Callable[..., Installed]:
    """Install a wheel, with extras and pins, into a new environment."""

    def install(wheel: Path, *pins: str, extras: str = "", python: str = sys._base_executable) -> Installed:
        folder = tmp_path_factory.mktemp("installed")
        requirement = f"horsies-django{extras} @ {wheel.as_uri()}"
        return Installed(folder, make_venv(folder / "venv", python, requirement, *pins))

    return install


def make_venv(folder: Path, python: str, *requirements: str) -> Path:
    """Create a virtual environment with these packages, and return its Python."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *requirements], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "bin" / "python"
