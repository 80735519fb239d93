"""What a worker takes that has nothing to do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

from ..options import Options
from ..stage import Stage

#: Seconds of rest before it counts, and seconds that count.
_SETTLE: Final = 5.0
_WATCH: Final = 10.0
WARM_UP: Final = 20


def idle(stage: Stage, options: Options) -> dict[str, float]:
    """Let the workers do a few tasks, and watch them do nothing."""
    counting = stage.postgres.statements(stage.database) if stage.postgres else nullcontext(lambda: None)
    with counting as statements, stage.workers(options.processes) as (group, _):
        stage.call("send_each", first=0, count=WARM_UP, pause=0.05)
        stage.wait_until_begun(group, 0, WARM_UP)
        stage.wait_until_stored(group)
        time.sleep(_SETTLE)
        pids, said = group.pids(), statements()
        spent, began = _cpu_seconds(pids), time.monotonic()
        time.sleep(_WATCH)
        seconds = time.monotonic() - began
        told, busy = statements(), _cpu_seconds(group.pids()) - spent
        memory = sum(map(_pss, group.pids()))
    figures = {"MiB": memory / 2**20, "CPU %": 100 * busy / seconds, "processes": len(pids)}
    if told is not None and said is not None:
        figures["statements/s"] = (told - said) / seconds
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
