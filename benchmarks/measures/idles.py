"""What a worker takes that has nothing to do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

from ..harness import Harness
from ..options import Options

#: Seconds of rest before it counts, and seconds that count.
_SETTLE_SECONDS: Final = 5.0
_MEASURED_SECONDS: Final = 10.0
WARM_UP: Final = 20


def idle(harness: Harness, options: Options) -> dict[str, float]:
    """Let the workers do a few tasks, and watch them do nothing."""
    counting = harness.postgres.count_statements(harness.database) if harness.postgres else nullcontext(lambda: None)
    with counting as count_statements, harness.workers(options.processes) as (group, _):
        harness.call("send_each", first=0, count=WARM_UP, pause=0.05)
        harness.wait_until_started(group, 0, WARM_UP)
        harness.wait_until_finished(group)
        time.sleep(_SETTLE_SECONDS)
        pids, statements_before = group.pids(), count_statements()
        cpu_before, began = _cpu_seconds(pids), time.monotonic()
        time.sleep(_MEASURED_SECONDS)
        seconds = time.monotonic() - began
        statements_after, cpu_used = count_statements(), _cpu_seconds(group.pids()) - cpu_before
        memory = sum(map(_pss, group.pids()))
    figures = {"MiB": memory / 2**20, "CPU %": 100 * cpu_used / seconds, "processes": len(pids)}
    if statements_after is not None and statements_before is not None:
        figures["statements/s"] = (statements_after - statements_before) / seconds
    return figures


def _cpu_seconds(pids: Iterable[int]) -> float:
    ticks = 0
    for pid in pids:
        # One that has ended meanwhile counts with its parent.
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(map(int, fields[11:15]))  # user and system, and those of ended children
    return ticks / os.sysconf("SC_CLK_TCK")


def _pss(pid: int) -> int:
    """Return a process's share of memory: its own, and its part of what several use."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
