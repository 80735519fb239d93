"""What bodies do so that tests see and control them: write entries, and wait for gates."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.jobs.models import Entry

#: Seconds, longer than any test waits.
FOREVER = 60


def write_entry(key: str) -> None:
    """Record that a body has come to this step, in which process and when."""
    Entry.objects.create(key=key, pid=os.getpid(), at=time.time())


def entries() -> list[str]:
    """Return what bodies have recorded so far."""
    return list(Entry.objects.order_by("pk").values_list("key", flat=True))


def wait_for_gate(gate: str | Path, seconds: float = FOREVER) -> None:
    """Wait until the file ``gate`` exists."""
    limit = time.monotonic() + seconds
    while not Path(gate).exists():
        if time.monotonic() > limit:
            raise TimeoutError(gate)
        time.sleep(0.02)
