"""``python -m benchmarks``."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

from .chart import svg
from .options import parsed
from .results import Results
from .runs import run, say
from .table import markdown


def main() -> int:
    """Measure, print, store."""
    options = parsed(sys.argv[1:])
    # Told to end in whichever way, it ends what it has started and tells what it knows.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results = run(options)
    if results.rounds or results.failures:
        print(markdown(results))
        stored = store(results, options.folder / "results")
        say(f"stored as {stored}.json, .md and .svg")
    if results.interrupted:
        return 130
    return 0 if results.rounds else 1


def store(results: Results, folder: Path) -> Path:
    """Write the results and return their path without its ending."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / time.strftime("%Y-%m-%d-%H%M%S")
    path.with_suffix(".json").write_text(json.dumps(results.as_json(), indent=1))
    path.with_suffix(".md").write_text(markdown(results))
    path.with_suffix(".svg").write_text(svg(results))
    return path


if __name__ == "__main__":
    sys.exit(main())
