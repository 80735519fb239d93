"""How long a run will take, by how long the same took before on this machine."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .registry import Peer

#: Seconds for what was never measured here.
_UNKNOWN: Final = 15.0


def expected(turns: Iterable[tuple[str, Peer]], folder: Path) -> str:
    """Tell how many minutes the turns will take, in all and for each measure."""
    known = seconds(folder)
    spent: defaultdict[str, float] = defaultdict(float)
    unknown = 0
    for measure, peer in turns:
        unknown += (measure, peer.name) not in known
        spent[measure] += known.get((measure, peer.name), _UNKNOWN)
    told = f"some {math.ceil(sum(spent.values()) / 60)} minutes ("
    told += ", ".join(f"{measure} {took / 60:.1f}" for measure, took in spent.items()) + ")"
    return f"{told}; {unknown} turns are of what was never measured here" if unknown else told


def seconds(folder: Path) -> dict[tuple[str, str], float]:
    """Return how long each peer last took for each measure, its slowest round."""
    found: dict[tuple[str, str], float] = {}
    for path in sorted(folder.glob("*.json")):
        for measure, peers in json.loads(path.read_text()).get("seconds", {}).items():
            for peer, took in peers.items():
                found[measure, peer] = max(took)
    return found
