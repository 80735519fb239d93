"""``python -m tests.tally FOLDER``: one line that sums up the JUnit reports of a folder."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree


def tally(reports: Iterable[Path]) -> str:
    """Return how many tests passed, failed (errors among them) and were skipped."""
    tests = failed = skipped = 0
    for report in reports:
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            tests += int(suite.get("tests", 0))
            failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped += int(suite.get("skipped", 0))
    return f"{tests - failed - skipped} passed, {failed} failed, {skipped} skipped"


if __name__ == "__main__":
    print(tally(Path(sys.argv[1]).glob("*.xml")))
