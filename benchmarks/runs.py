"""Runs every round of every measure for every peer."""

from __future__ import annotations

import fcntl
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import commits, npm, venvs
from .estimate import is_too_slow_to_repeat
from .harness import HarnessConfig, Stores, open_harness
from .measures.catalog import MEASURES
from .options import Options
from .registry import CHECKOUT, NODE, REDIS, Peer
from .results import Results
from .servers import DURABLE, Postgres, postgres, redis
from .venvs import InstallError


def run(options: Options, store: Callable[[Results], None]) -> Results:
    """Run all turns until the time limit or an interrupt, and return the results.

    It calls ``store`` after each turn, so that a crash loses no results.
    """
    needs_redis = any(peer.store == REDIS for _, peer in turns(options))
    with postgres(options.database_url) as server, redis(needs_redis) as redis_url:
        stores = Stores(server, redis_url)
        results = Results(describe_machine(options.folder), describe_settings(options, server), interrupted=True)
        try:
            programs = install_peers(options, stores, results)
            until = time.monotonic() + 60 * options.minutes
            for name, peer in turns(options):
                if time.monotonic() > until:
                    results.settings["ended"] = f"by the limit of {options.minutes:g} minutes, before the last rounds"
                    break
                if peer.name in programs and not is_too_slow_to_repeat(name, peer, results.seconds[name][peer.name]):
                    _measure(name, peer, programs[peer.name], stores, options, results)
                    store(results)
            results.interrupted = False
        except KeyboardInterrupt:
            log("interrupted")
    return results


def turns(options: Options) -> Iterator[tuple[str, Peer]]:
    """Yield each turn, a measure with a peer, in running order."""
    # Complete a round of all measures before the next, so that a run that ends early has results for each measure.
    for round_ in range(max((MEASURES[name].rounds_for(options) for name in options.measures), default=0)):
        for name in options.measures:
            if round_ < MEASURES[name].rounds_for(options):
                for peer in _rotated(options.peers, round_):
                    if _takes_part(peer, name, options):
                        yield name, peer


def _takes_part(peer: Peer, measure: str, options: Options) -> bool:
    if peer.of_commit and options.before is None:
        return False
    return MEASURES[measure].takes_part(peer) and measure not in peer.skips and peer.only in ("", measure)


def _rotated(peers: tuple[Peer, ...], round_: int) -> tuple[Peer, ...]:
    """Start each round with another peer, because earlier peers change the state of the machine."""
    shift = round_ % len(peers)
    return peers[shift:] + peers[:shift]


def install_peers(options: Options, stores: Stores, results: Results) -> dict[str, Path]:
    """Install the peers that take part, and return the Python or the Node of each that succeeds."""
    programs: dict[str, Path] = {}
    renewed: set[str] = set()
    wanted = {peer for _, peer in turns(options)}
    for peer in filter(wanted.__contains__, options.peers):
        if peer.store == REDIS and stores.redis is None:
            results.fail("install", peer.name, "it needs Redis, and no redis-server was found or it did not start")
            log(f"{peer.name}: {results.failures['install'][peer.name]}")
            continue
        try:
            program = _ensure_installed(peer, options.folder, renew=options.renew and peer.module not in renewed)
            renewed.add(peer.module)
            if peer.of_commit:
                commits.export_package(options)
        except InstallError as error:
            results.fail("install", peer.name, str(error))
            log(f"{peer.name}: {error}")
            continue
        programs[peer.name] = program
        results.versions[peer.name] = _version(peer, program, options)
        log(f"{peer.name} {results.versions[peer.name]}")
    return programs


def _ensure_installed(peer: Peer, folder: Path, *, renew: bool) -> Path:
    if peer.runtime == NODE:
        return npm.ensure_packages(peer, folder, renew=renew)
    return venvs.ensure_venv(peer, folder, renew=renew)


def _version(peer: Peer, program: Path, options: Options) -> str:
    if peer.of_commit:
        return f"as of {options.before}"
    found = npm.versions(program) if peer.runtime == NODE else venvs.versions(program)
    return found.get(peer.distribution, "?")


def _measure(name: str, peer: Peer, program: Path, stores: Stores, options: Options, results: Results) -> None:
    if peer.name in results.failures[name]:
        return
    measure = MEASURES[name]
    try:
        package = commits.package_path(options) if peer.of_commit else CHECKOUT
        config = HarnessConfig(measure.max_tasks(options), options.threads, options.folder / "logs", package)
        with hold_lock(options.lock):
            began = time.monotonic()
            with open_harness(peer, program, stores, config) as harness:
                metrics = measure.run(harness, options)
            seconds = time.monotonic() - began
    except Exception as error:  # noqa: BLE001 - the table reports one peer's failure, and the others continue
        reason = (str(error).strip().splitlines() or [repr(error)])[-1]
        results.fail(name, peer.name, reason)
        log(f"{name} {peer.name}: {reason}")
        return
    results.add(name, peer.name, metrics, seconds)
    shown = ", ".join(f"{value:,.4g} {metric}" for metric, value in metrics.items() if measure.in_table(metric))
    log(f"{name} {peer.name}, {seconds:.0f} s: {shown}")


def log(line: str) -> None:
    """Print a line with the time to standard error."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


@contextmanager
def hold_lock(lock: Path | None) -> Iterator[None]:
    """Hold an exclusive lock on the file, if one is given, during the block."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def describe_machine(folder: Path) -> dict[str, str]:
    """Return the properties of the machine that affect results."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "python": platform.python_version(),
        "synced write of 8 KiB": f"{time_synced_write(folder) * 1e6:.0f} µs",
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def time_synced_write(folder: Path, times: int = 200) -> float:
    """Return the mean seconds of a synced 8 KiB write, the cost of a commit."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "synced"
    with path.open("wb", buffering=0) as file:
        file.write(bytes(8192))
        began = time.monotonic()
        for _ in range(times):
            os.pwrite(file.fileno(), bytes(8192), 0)
            os.fdatasync(file.fileno())
        seconds = time.monotonic() - began
    path.unlink()
    return seconds / times


def describe_settings(options: Options, server: Postgres) -> dict[str, object]:
    """Return the options of the run and the settings of the server."""
    found = server.settings()
    described = {
        "rounds": ", ".join(f"{name} {MEASURES[name].rounds_for(options)}" for name in options.measures),
        "tasks": f"{options.tasks:,}",
        "worker processes": options.processes,
        "horsies-django threads in a drain": options.threads,
        "PostgreSQL": ", ".join(f"{name} {value}" for name, value in found.items()),
    }
    if lax := [name for name, value in DURABLE.items() if found.get(name) != value]:
        described["not durable"] = ", ".join(lax)
    if not server.can_checkpoint:
        described["no checkpoint before a drain"] = "the role lacks permission; GRANT pg_checkpoint allows it"
    return described
