"""``python -m tests.soak --minutes 30``: run at mixed load, and report how memory, connections and tables grow.

The first quarter, in which the tables fill, is left out of the slopes. DATABASE_URL names an empty database on a
PostgreSQL server; without it, one is started from a wheel.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.__main__ import postgres

#: Seconds between two samples.
INTERVAL = 10.0

#: The samples that a report needs at least.
MIN_SAMPLES = 8


def main() -> int:
    """Run, print the report, and return 1 if tasks are left."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rate", type=float, default=150, help="Calls a second.")
    parser.add_argument("--samples", metavar="FILE", type=Path, help="Write all samples there, as JSON.")
    arguments = parser.parse_args()
    with postgres(autovacuum="on") as url:
        os.environ |= {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.soak.settings", "DEBUG": "0"}
        import django

        django.setup()
        return _run(arguments.minutes * 60, arguments.rate, arguments.samples)


def _run(seconds: float, rate: float, file: Path | None) -> int:
    from django.core.management import call_command
    from django.db import connection

    from tests.soak.load import Load, waiting_now
    from tests.soak.samples import sample, slopes

    call_command("migrate", run_syncdb=True, verbosity=0)
    client = _client()
    command = [sys.executable, "manage.py", "horsies_worker", "-v0", "--processes", "2"]
    times: list[float] = []
    samples: list[dict[str, float]] = []
    pages: Counter[int] = Counter()
    load = Load(rate)
    with tempfile.TemporaryFile("w+") as log:  # each failure of a task is logged
        worker = subprocess.Popen(command, start_new_session=True, stderr=log)
        try:
            load.start()
            began = time.monotonic()
            while (now := time.monotonic() - began) < seconds or len(times) < MIN_SAMPLES:
                load.check()
                if worker.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(f"The worker exited with status {worker.returncode}: {log.read()[-2_000:]}")
                times.append(now)
                samples.append({**sample(worker.pid), "due tasks": waiting_now()})
                pages.update(client.get(f"/admin/horsies_django/{page}/").status_code for page in ("overview", "task"))
                time.sleep(INTERVAL)
            load.stop()
            load.check()
            left = _await_idle(waiting_now)
        finally:
            load.stop()
            worker.terminate()
            worker.wait()
            connection.close()
    if file is not None:
        file.write_text(json.dumps({"times": times, "samples": samples}))
    skipped = len(times) // 4
    print(f"{load.sent:,} calls in {seconds / 60:g} minutes, of which {left} due tasks were left.")
    print(f"Pages of the admin by status: {dict(pages)}")
    print(f"{'':42} {'first tenth':>14} {'last tenth':>14} {'per hour':>14}   standard error")
    print(*slopes(times[skipped:], samples[skipped:]), sep="\n")
    return 1 if left else 0


def _client() -> Any:
    from django.contrib.auth import get_user_model
    from django.test import Client

    client = Client()
    client.force_login(get_user_model().objects.create_superuser("soak"))
    return client


def _await_idle(waiting_now: Any) -> int:
    """Wait until no task is due, at most two minutes, and return how many are."""
    deadline = time.monotonic() + 120
    while (left := waiting_now()) and time.monotonic() < deadline:
        time.sleep(1)
    return int(left)


if __name__ == "__main__":
    sys.exit(main())
