"""Measures how soon an idle worker starts a new task."""

from __future__ import annotations

import statistics
import time
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
    waits = sorted(1_000 * (harness.probe.started_at(WARM_UP + index) - call) for index, call in enumerate(called_at))
    return {
        "p50 ms": statistics.median(waits),
        "p99 ms": waits[int(len(waits) * 0.99) - 1],
        "max ms": waits[-1],
    }
