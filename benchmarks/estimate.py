"""How long a run will take, by how long the same took before on this machine."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .registry import Peer

#: Seconds for what was never measured here.
_UNKNOWN: Final = 15.0


#: Seconds of one turn after which a peer has no further turn of that measure.
_LONG: Final = 30.0


def has_enough_turns(peer: Peer, took: Iterable[float]) -> bool:
    """Return whether a peer has had turns enough of a measure. Those that are measured in depth have all."""
    return not peer.in_depth and max(took, default=0.0) > _LONG


def estimate(turns: Iterable[tuple[str, Peer]], folder: Path) -> str:
    """Tell how many minutes the turns will take, in all and for each measure."""
    known = seconds(folder)
    took: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    unknown = 0
    for measure, peer in turns:
        key = measure, peer.name
        if not has_enough_turns(peer, took[key]):
            unknown += key not in known
            took[key].append(known.get(key, _UNKNOWN))
    spent: defaultdict[str, float] = defaultdict(float)
    for (measure, _), turns_took in took.items():
        spent[measure] += sum(turns_took)
    told = f"some {math.ceil(sum(spent.values()) / 60)} minutes ("
    told += ", ".join(f"{measure} {all_ / 60:.1f}" for measure, all_ in spent.items()) + ")"
    return f"{told}; {unknown} turns are of what was never measured here" if unknown else told


def seconds(folder: Path) -> dict[tuple[str, str], float]:
    """Return how long each peer last took for each measure, on average."""
    found: dict[tuple[str, str], float] = {}
    for path in sorted(folder.glob("*.json")):
        for measure, peers in json.loads(path.read_text()).get("seconds", {}).items():
            found |= {(measure, peer): statistics.mean(took) for peer, took in peers.items() if took}
    return found
