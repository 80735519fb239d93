"""``python -m tests.chaos --seconds 120 --seed 1``: disrupt workers and database, then check every guarantee."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.chaos import ledger
from tests.chaos.cluster import cluster

#: Thresholds of the workers, in milliseconds.
STALE, HEARTBEAT, CHECK = 3_000, 400, 500


def main() -> int:
    """Run, print the report and return 1 if a guarantee was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep-log", metavar="FILE", help="Keep the workers' log there.")
    arguments = parser.parse_args()
    with cluster() as own, tempfile.TemporaryDirectory(prefix="horsies-ledger-") as folder:
        os.environ |= {
            "DATABASE_URL": own.url,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "TEST_STALE_MS": str(STALE),
            "TEST_HEARTBEAT_MS": str(HEARTBEAT),
            "TEST_CHECK_MS": str(CHECK),
            ledger.VARIABLE: str(Path(folder, "ledger")),
        }
        import django

        django.setup()
        from tests.chaos.trial import Trial

        log = Path(arguments.keep_log or Path(folder, "log"))
        report = Trial(own, arguments.seed, log, STALE / 1_000).run(arguments.seconds)
    print(report)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
