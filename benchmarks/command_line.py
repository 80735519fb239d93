"""Parses the command line of ``python -m benchmarks``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .measures.catalog import MEASURES
from .options import Options
from .registry import CHECKOUT, PEERS

#: The measures of ``--quick``.
QUICK_MEASURES: Final = ("drain", "latency", "enqueue", "bulk")


def parse(arguments: Sequence[str]) -> Options:
    """Parse the command line; exit with a usage error if a value is invalid."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    quick = parsed.quick
    names = parsed.only or [peer.name for peer in PEERS.values() if peer.quick or not quick]
    by_default = tuple(name for name, measure in MEASURES.items() if measure.by_default)
    measures = parsed.measure or (QUICK_MEASURES if quick else by_default)
    _reject_unknown(parser, "peer", names, PEERS)
    _reject_unknown(parser, "measure", measures, MEASURES)
    for name in ("rounds", "tasks", "threads", "processes", "depth"):
        if getattr(parsed, name) is not None and getattr(parsed, name) < 1:
            parser.error(f"--{name} must be at least 1.")
    return Options(
        peers=tuple(PEERS[name] for name in names),
        measures=tuple(measures),
        rounds=parsed.rounds or (3 if quick else None),
        tasks=parsed.tasks,
        threads=parsed.threads,
        processes=parsed.processes,
        depth=parsed.depth,
        folder=parsed.folder.resolve(),
        database_url=parsed.database_url,
        renew=parsed.renew,
        lock=parsed.lock,
        minutes=parsed.minutes,
        long_minutes=parsed.long_minutes,
        before=parsed.before,
        dry=parsed.dry,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Compare this queue with its peers. Each peer is installed from PyPI into a virtual environment. "
        "They take turns on the same servers, for several rounds. docs/benchmarks.md describes each measure.",
        epilog=f"peers: {', '.join(PEERS)}. measures: "
        + "; ".join(f"{name}: {measure.about}" for name, measure in MEASURES.items())
        + ".",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="this queue, PgQueuer and procrastinate, in less than three minutes")
    add("--only", type=_names, metavar="A,B", help="run only these peers")
    add("--measure", type=_names, metavar="A,B", help="run only these measures, in this order")
    add(
        "--rounds",
        type=int,
        metavar="N",
        help="rounds of each measure (3 with --quick, else set by each measure)",
    )
    add(
        "--before",
        metavar="COMMIT",
        help="measure horsies-django-before too: this package as of an earlier commit, with the default of 8 threads",
    )
    add(
        "--minutes",
        type=float,
        default=60.0,
        metavar="N",
        help="start no turn after N minutes (%(default)g)",
    )
    add(
        "--long-minutes",
        type=float,
        default=3.0,
        metavar="N",
        help="minutes of sends in the measure long (%(default)g)",
    )
    add(
        "--tasks",
        type=int,
        default=20_000,
        metavar="N",
        help="tasks in a drain; slow peers get fewer (%(default)s)",
    )
    add(
        "--threads",
        type=int,
        default=32,
        metavar="N",
        help="--threads of horsies_worker in a drain (%(default)s)",
    )
    add("--processes", type=int, default=2, metavar="N", help="worker processes of each peer (%(default)s)")
    add(
        "--depth",
        type=int,
        default=1_000_000,
        metavar="N",
        help="preloaded rows in the measure depth (%(default)s)",
    )
    add(
        "--database-url",
        metavar="URL",
        help="use this PostgreSQL server instead of starting one. The role needs CREATEDB, and nothing else should "
        "use the server",
    )
    add(
        "--folder",
        type=Path,
        default=CHECKOUT / ".benchmarks",
        help="directory for virtual environments and results (.benchmarks in the checkout)",
    )
    add("--renew", action="store_true", help="reinstall every peer at its newest version")
    add(
        "--lock",
        type=Path,
        metavar="FILE",
        help="lock this file during each turn, on a machine where several people run benchmarks",
    )
    add("--dry", action="store_true", help="only print the expected duration, estimated from stored runs")
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _reject_unknown(parser: argparse.ArgumentParser, kind: str, names: Sequence[str], known: object) -> None:
    assert isinstance(known, dict)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no {kind} {', '.join(unknown)}; available: {', '.join(known)}.")
