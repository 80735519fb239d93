"""The options of a run, as parsed from the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .registry import Peer


@dataclass(frozen=True, slots=True)
class Options:
    """Validated options of a run."""

    peers: tuple[Peer, ...]
    measures: tuple[str, ...]
    rounds: int | None
    tasks: int
    threads: int
    processes: int
    depth: int
    folder: Path
    database_url: str | None
    renew: bool
    lock: Path | None
    minutes: float
    long_minutes: float
    before: str | None
    dry: bool = False
