"""How well the slots of a worker are kept busy when bodies wait 10 ms, as most that speak to the network do."""

from __future__ import annotations

import time
from typing import Final

from ..options import Options
from ..probe import NAP
from ..stage import Stage

#: Bodies at once, over all processes of a peer that lets one choose.
SLOTS: Final = 16

#: Naps for each slot; fewer where the slots are far from busy, which is seen soon.
_EACH: Final = 150
_EACH_OF_SLOW: Final = 50
_SLOW: Final = 0.05

#: The most that any peer's slots come to.
MOST: Final = _EACH * 4 * SLOTS


def naps(stage: Stage, options: Options) -> dict[str, float]:
    """Empty a queue of naps."""
    _, at_once = stage.call("workers", processes=options.processes, slots=SLOTS // options.processes)
    count = min(MOST, (_EACH_OF_SLOW if stage.peer.share <= _SLOW else _EACH) * at_once)
    stage.fill(count, "nap")
    with stage.workers(options.processes, SLOTS // options.processes) as (group, slots):
        stage.wait_until_begun(group, 0, count)
        stage.wait_until_stored(group)
        ended = time.monotonic()
    ideal = NAP * count / slots
    return {
        "share of the ideal": ideal / (ended - stage.probe.times(0, count)[0]),
        "slots": slots,
        "tasks": count,
    }
