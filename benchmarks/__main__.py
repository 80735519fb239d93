"""The entry point of ``python -m benchmarks``."""

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
from .curve_chart import curve_svg
from .estimate import estimate
from .results import Results
from .runs import log, run, turns
from .servers import ServerError
from .table import markdown


def main() -> int:
    """Run the measures, print the table and store the results."""
    options = parse(sys.argv[1:])
    folder = options.folder / "results"
    if not any(turns(options)):
        log("none of these peers takes part in any of these measures")
        return 1
    log(estimate(turns(options), folder))
    if options.dry:
        return 0
    # Handle SIGTERM like Ctrl-C: stop all child processes, then store and print the results so far.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    path = folder / time.strftime("%Y-%m-%d-%H%M%S")
    try:
        results = run(options, partial(store, path))
    except (ServerError, psycopg.OperationalError) as error:
        log(f"no usable server: {error}")
        return 1
    except KeyboardInterrupt:
        log("interrupted before the first result or during shutdown")
        return 130
    if results.rounds or results.failures:
        store(path, results)
        print(markdown(results))
        log(f"stored as {path}.json, .md and .svg")
    if results.interrupted:
        return 130
    return 0 if results.rounds else 1


def store(path: Path, results: Results) -> None:
    """Write the results to ``path`` with the suffixes .json, .md and .svg, and the chart of ``curve`` to .curve.svg."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = {".json": json.dumps(results.as_json(), indent=1), ".md": markdown(results), ".svg": svg(results)}
    if curves := curve_svg(results):
        files[".curve.svg"] = curves
    for suffix, text in files.items():
        # Replace atomically, so that readers never see a partial file, even after a crash.
        partial_file = path.with_suffix(f"{suffix}.partial")
        partial_file.write_text(text)
        partial_file.replace(path.with_suffix(suffix))


if __name__ == "__main__":
    sys.exit(main())
