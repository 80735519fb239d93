"""The versions that the metadata allows: lower bounds as pins, and the Python interpreters of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

#: What users install beside the package itself.
RUNTIME_EXTRAS: Final = ("backport", "binary", "demo", "opentelemetry", "prometheus", "words")

REQUIREMENT = re.compile(r"(?P<name>[\w-]+)(?:\[\w+\])?>=(?P<bound>[\d.]+)")


def lower_bounds() -> dict[str, str]:
    """Return the lowest version of each runtime requirement, extras included."""
    extras = [line for extra in RUNTIME_EXTRAS for line in PROJECT["optional-dependencies"][extra]]
    bounds = {}
    for line in (*PROJECT["dependencies"], *extras):
        if not line.startswith(PROJECT["name"]):  # an extra of its own
            match = REQUIREMENT.match(line)
            assert match, f"no lower bound: {line}"
            bounds[match["name"]] = match["bound"]
    return bounds


def lowest_python() -> str:
    """Return the lowest Python version that the metadata allows, such as ``3.11``."""
    return str(PROJECT["requires-python"].removeprefix(">="))


def classified_pythons() -> list[str]:
    """Return the Python versions of the classifiers, the highest first."""
    found = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if " Python :: 3." in line]
    return sorted(found, key=lambda version: int(version.partition(".")[2]), reverse=True)


def python_of(version: str) -> str | None:
    """Return the interpreter of this version; None if it is not installed. pyenv keeps its own off the PATH."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return str(sys._base_executable)  # type: ignore[attr-defined]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *map(str, sorted(versions.glob(f"{version}.*/bin/python")))]
    return next((path for path in candidates if path and _runs(path)), None)


def _runs(path: str) -> bool:
    return subprocess.run([path, "-V"], capture_output=True, check=False).returncode == 0
