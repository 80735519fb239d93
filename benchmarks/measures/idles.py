"""Measures memory, CPU time and statements of idle workers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

from ..bare import pss
from ..harness import Harness
from ..options import Options

#: Seconds idle before the measurement, so that a reaper has processed the tasks, and seconds measured: the interval of
#: this queue's reaper, so that they include a pass without work.
_SETTLE_SECONDS: Final = 35.0
_MEASURED_SECONDS: Final = 30.0
WARM_UP: Final = 20


def idle(harness: Harness, options: Options) -> dict[str, float]:
    """Run a few tasks, then measure the idle workers; compare those of Django with as many bare processes."""
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
        memory = sum(map(pss, group.pids()))
    figures = {"MiB": memory / 2**20, "CPU %": 100 * cpu_used / seconds, "processes": len(pids)}
    if harness.peer.site and harness.url:  # as the bare processes, it has connections to PostgreSQL
        figures["memory / bare"] = memory / int(harness.run_module("benchmarks.bare", str(len(pids))))
    if statements_after is not None and statements_before is not None:
        figures["statements/s"] = (statements_after - statements_before) / seconds
    return figures


def _cpu_seconds(pids: Iterable[int]) -> float:
    ticks = 0
    for pid in pids:
        # The times of an exited process are included in its parent's.
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return ticks / os.sysconf("SC_CLK_TCK")
