"""Settings and helpers that the modules of all peers share."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

DATABASE = os.environ.get("BENCHMARK_DATABASE", "")
REDIS = os.environ.get("BENCHMARK_REDIS", "")
FOLDER = Path(os.environ.get("BENCHMARK_FOLDER", "."))
VARIANT = os.environ.get("BENCHMARK_VARIANT", "")
THREADS = int(os.environ.get("BENCHMARK_THREADS", "8"))


class WorkerCommands(NamedTuple):
    """The command lines of a peer's worker processes, and their total number of slots."""

    commands: list[list[str]]
    slots: int


def script(name: str) -> str:
    """Return the path of a command in this virtual environment."""
    return str(Path(sys.executable).with_name(name))


def chunks(first: int, count: int, size: int) -> list[range]:
    """Split ``count`` numbers into ranges of at most ``size``."""
    return [range(start, min(start + size, first + count)) for start in range(first, first + count, size)]
