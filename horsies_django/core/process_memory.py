"""The memory that a process takes."""

from __future__ import annotations

import os
import resource
from pathlib import Path


def resident_bytes_of(pid: int | str) -> int | None:
    """Return the memory of a process in bytes; None if it is gone, and without /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None


def resident_bytes() -> int:
    """Return the memory of this process in bytes; without /proc, the most that it ever took."""
    return resident_bytes_of("self") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
