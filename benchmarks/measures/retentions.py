"""Measures how a drain goes on for minutes while as many tasks are deleted as end.

Tasks are kept for a tenth of the time. A backlog never runs out, so the worker runs as fast as it can.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Final

import psycopg

from ..harness import Harness
from ..options import Options
from ..samples import Sample, Samples, write_csv
from .long_transactions import CLAIM

#: Tasks in a send, which follows when fewer than this are left.
_CHUNK: Final = 20_000

#: Unmeasured tasks, so that the workers have opened their connections.
_WARM_UP: Final = 1_000

#: The most tasks a second that the measure numbers.
_MAX_RATE: Final = 8_000

_SAMPLES: Final = 720


def max_tasks(options: Options) -> int:
    """Return the most tasks that the measure numbers."""
    return round(60 * options.long_minutes * _MAX_RATE) + 2 * _CHUNK


def retention(harness: Harness, options: Options) -> dict[str, float]:
    """Drain for minutes, and compare the time before the first deletes with the last tenth."""
    seconds = 60 * options.long_minutes
    kept = seconds / 10
    counts: list[tuple[float, int]] = []
    with harness.workers(options.processes) as (group, slots), psycopg.connect(harness.url, autocommit=True) as own:
        samples = Samples(own)
        harness.call("send_kept", first=0, count=_CHUNK, seconds=kept)
        sent = _CHUNK
        harness.wait_until_started(group, 0, _WARM_UP)
        start = sampled_at = time.monotonic()
        while (now := time.monotonic()) < start + seconds:
            begun = counts[-1][1] if counts else 0
            begun += harness.probe.count_started(begun, sent - begun)
            if sent - begun < _CHUNK:
                harness.call("send_kept", first=sent, count=_CHUNK, seconds=kept)
                sent += _CHUNK
            elif now >= sampled_at + seconds / _SAMPLES or not counts:
                sampled_at = now
                samples.take()
                counts.append((samples[-1].at, begun))
            else:
                time.sleep(0.05)
            group.raise_if_exited()
    _write(options, harness.peer.name, samples, counts)

    def rate(since: float, until: float) -> float:
        first = max([each for each in counts if each[0] <= start + since] or counts[:1])
        last = min([each for each in counts if each[0] >= start + until] or counts[-1:])
        return (last[1] - first[1]) / max(1.0, last[0] - first[0])

    def size(sample: Sample) -> float:
        return (sample.table_bytes + sample.index_bytes) / 2**20

    phases = {"first tenth": (0.0, kept), "last tenth": (0.9 * seconds, seconds)}
    figures = {f"{phase}, tasks/s": rate(*period) for phase, period in phases.items()}
    for phase, (since, until) in phases.items():
        first, last = samples.at(start + since), samples.at(start + until)
        figures[f"{phase}, deleted/s"] = (last.deleted_rows - first.deleted_rows) / max(1.0, last.at - first.at)
        if (buffers := last.buffers_per_call(first, CLAIM)) is not None:
            figures[f"{phase}, buffers/claim"] = buffers
    return {
        "last tenth to first": figures["last tenth, tasks/s"] / max(1.0, figures["first tenth, tasks/s"]),
        **figures,
        "kept, s": kept,
        "after a quarter, MiB": size(samples.at(start + seconds / 4)),
        "at the end, MiB": size(samples[-1]),
        "at most, MiB": max(map(size, samples)),
        "most dead rows": max(sample.dead_rows for sample in samples),
        "slots": slots,
        "began more than once": harness.probe.count_repeated(0, sent),
    }


def _write(options: Options, peer: str, samples: Samples, counts: list[tuple[float, int]]) -> None:
    """Write a line for each sample."""
    rows = []
    for (earlier, later), ((_, before), (_, after)) in zip(pairwise(samples), pairwise(counts), strict=True):
        deleted, buffers = later.deleted_rows - earlier.deleted_rows, later.buffers - earlier.buffers
        state = [later.dead_rows, later.table_bytes, later.index_bytes]
        rows.append([round(later.at - samples[0].at, 1), after - before, deleted, buffers, *state])
    path = options.folder / "results" / f"{time.strftime('%Y-%m-%d-%H%M%S')}-retention-{peer}.csv"
    write_csv(
        path, ["seconds", "begun", "deleted", "buffers", "dead rows", "bytes of tables", "bytes of indexes"], rows
    )
