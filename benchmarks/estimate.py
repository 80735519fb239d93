"""Estimates the duration of a run from the durations of earlier runs on this machine."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .measures.catalog import MEASURES
from .registry import Peer

#: Assumed seconds of a turn for which no earlier result is stored.
_DEFAULT_SECONDS: Final = 15.0


def is_too_slow_to_repeat(measure: str, peer: Peer, durations: Iterable[float]) -> bool:
    """Return whether a measure of this peer is too slow to repeat. Peers measured in depth always get every turn."""
    return not peer.in_depth and max(durations, default=0.0) > MEASURES[measure].max_seconds


def estimate(turns: Iterable[tuple[str, Peer]], folder: Path) -> str:
    """Return a line with the expected minutes, in total and for each measure."""
    known = mean_durations(folder)
    durations: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    unknown = 0
    for measure, peer in turns:
        key = measure, peer.name
        if not is_too_slow_to_repeat(measure, peer, durations[key]):
            unknown += key not in known
            durations[key].append(known.get(key, _DEFAULT_SECONDS))
    total: defaultdict[str, float] = defaultdict(float)
    for (measure, _), seconds in durations.items():
        total[measure] += sum(seconds)
    by_measure = ", ".join(f"{measure} {seconds / 60:.1f}" for measure, seconds in total.items())
    line = f"about {math.ceil(sum(total.values()) / 60)} minutes ({by_measure})"
    return f"{line}; no stored result for {unknown} turns" if unknown else line


def mean_durations(folder: Path) -> dict[tuple[str, str], float]:
    """Return the mean seconds of a turn in the latest stored run, by measure and peer."""
    found: dict[tuple[str, str], float] = {}
    for path in sorted(folder.glob("*.json")):
        for measure, peers in json.loads(path.read_text()).get("seconds", {}).items():
            found |= {(measure, peer): statistics.mean(took) for peer, took in peers.items() if took}
    return found
