"""``python -m benchmarks``."""

from __future__ import annotations

import json
import signal
import sys
import time
from functools import partial
from pathlib import Path

import psycopg

from .chart import svg
from .command_line import parse
from .estimate import estimate
from .results import Results
from .runs import log, run, turns
from .servers import ServerError
from .table import markdown


def main() -> int:
    """Measure, print, store."""
    options = parse(sys.argv[1:])
    folder = options.folder / "results"
    if not any(turns(options)):
        log("none of these peers takes part in any of these measures")
        return 1
    log(estimate(turns(options), folder))
    if options.dry:
        return 0
    # Told to end in whichever way, it ends what it has started and tells what it knows.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    path = folder / time.strftime("%Y-%m-%d-%H%M%S")
    try:
        results = run(options, partial(store, path))
    except (ServerError, psycopg.OperationalError) as error:
        log(f"no server to measure on: {error}")
        return 1
    except KeyboardInterrupt:
        log("interrupted before anything was measured, or while it was being ended")
        return 130
    if results.rounds or results.failures:
        store(path, results)
        print(markdown(results))
        log(f"stored as {path}.json, .md and .svg")
    if results.interrupted:
        return 130
    return 0 if results.rounds else 1


def store(path: Path, results: Results) -> None:
    """Write the results to three files, whose path is given without its ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for ending, text in (
        (".json", json.dumps(results.as_json(), indent=1)),
        (".md", markdown(results)),
        (".svg", svg(results)),
    ):
        # Whoever reads them meanwhile, or comes after an end by force, finds them whole.
        half = path.with_suffix(f"{ending}.half")
        half.write_text(text)
        half.replace(path.with_suffix(ending))


if __name__ == "__main__":
    sys.exit(main())
