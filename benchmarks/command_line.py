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
    """Read the command line; ends the process where it asks for what there is not."""
    parser = _parser()
    given = parser.parse_args(arguments)
    quick = given.quick
    names = given.only or [peer.name for peer in PEERS.values() if peer.quick or not quick]
    measures = given.measure or (QUICK_MEASURES if quick else tuple(MEASURES))
    _refuse_unknown(parser, "peer", names, PEERS)
    _refuse_unknown(parser, "measure", measures, MEASURES)
    for name in ("rounds", "tasks", "threads", "processes", "depth"):
        if getattr(given, name) is not None and getattr(given, name) < 1:
            parser.error(f"--{name} has to be at least 1.")
    return Options(
        peers=tuple(PEERS[name] for name in names),
        measures=tuple(measures),
        rounds=given.rounds or (3 if quick else None),
        tasks=given.tasks,
        threads=given.threads,
        processes=given.processes,
        depth=given.depth,
        folder=given.folder.resolve(),
        database_url=given.database_url,
        renew=given.renew,
        lock=given.lock,
        minutes=given.minutes,
        dry=given.dry,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure this queue and its peers side by side: each from PyPI in a virtual environment of its "
        "own, on the same servers, in turns, several rounds. docs/benchmarks.md says how, and what each figure means.",
        epilog=f"peers: {', '.join(PEERS)}. measures: "
        + "; ".join(f"{name}: {measure.about}" for name, measure in MEASURES.items())
        + ".",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="this queue, PgQueuer and procrastinate, in less than three minutes")
    add("--only", type=_names, metavar="A,B", help="these peers")
    add("--measure", type=_names, metavar="A,B", help="these measures, in this order")
    add("--rounds", type=int, metavar="N", help="how often each is measured (3 with --quick; else by measure)")
    add("--minutes", type=float, default=40.0, metavar="N", help="begin nothing more after so many (%(default)g)")
    add("--tasks", type=int, default=20_000, metavar="N", help="tasks of a drain; the slow drain a share (%(default)s)")
    add("--threads", type=int, default=32, metavar="N", help="--threads of our worker in a drain (%(default)s)")
    add("--processes", type=int, default=2, metavar="N", help="worker processes of each peer (%(default)s)")
    add(
        "--depth",
        type=int,
        default=1_000_000,
        metavar="N",
        help="rows that lie about in the measure depth (%(default)s)",
    )
    add(
        "--database-url",
        metavar="URL",
        help="a PostgreSQL to use instead of one started here; a role that may create "
        "databases; not a server that anything else needs",
    )
    add(
        "--folder",
        type=Path,
        default=CHECKOUT / ".benchmarks",
        help="where virtual environments and results are kept (.benchmarks in the checkout)",
    )
    add("--renew", action="store_true", help="install the newest peers, even those that are installed")
    add(
        "--lock",
        type=Path,
        metavar="FILE",
        help="hold a lock on this file during each timed run, for machines that several people measure on",
    )
    add("--dry", action="store_true", help="only tell how long it would take, by the runs that are stored")
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _refuse_unknown(parser: argparse.ArgumentParser, kind: str, names: Sequence[str], known: object) -> None:
    assert isinstance(known, dict)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no {kind} {', '.join(unknown)}; there are: {', '.join(known)}.")
