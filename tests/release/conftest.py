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
    requirements = PROJECT["optional-dependencies"]["release"]
    return make_venv(tmp_path_factory.mktemp("tools"), sys._base_executable, "pip", *requirements)


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
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    path = folder / "bin" / "python"
    # The pip of the tests installs into it: to install a pip, and to compile all modules, takes half the time.
    pip = [sys.executable, "-m", "pip", "--python", str(path), "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-compile", *requirements]
    done = subprocess.run(install, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return path
