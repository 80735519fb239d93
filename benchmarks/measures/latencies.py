"""Measures how soon an idle worker starts a new task."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Final

from ..harness import Harness
from ..options import Options

#: Unmeasured tasks, so that every process has opened its connections.
WARM_UP: Final = 20
SAMPLES: Final = 100

#: Mean seconds between tasks.
_PAUSE: Final = 0.04


def latency(harness: Harness, options: Options) -> dict[str, float]:
    """Enqueue one by one, with pauses, and compare with the start times of the bodies."""
    with harness.workers(options.processes) as (group, _):
        harness.call("send_each", first=0, count=WARM_UP, pause=_PAUSE)
        harness.wait_until_started(group, 0, WARM_UP)
        harness.wait_until_finished(group)
        time.sleep(0.5)
        called_at = harness.call("send_each", first=WARM_UP, count=SAMPLES, pause=_PAUSE)
        harness.wait_until_started(group, WARM_UP, SAMPLES)
    return waits_of(harness, WARM_UP, called_at)


def waits_of(harness: Harness, first: int, sent_at: Sequence[float]) -> dict[str, float]:
    """Return the percentiles of the milliseconds from each of these times to the start of its task's body."""
    waits = sorted(1_000 * (harness.probe.started_at(first + index) - sent) for index, sent in enumerate(sent_at))
    return {
        "p50 ms": statistics.median(waits),
        "p99 ms": waits[int(len(waits) * 0.99) - 1],
        "max ms": waits[-1],
    }
