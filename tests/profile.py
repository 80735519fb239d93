"""``python -m tests.profile``: profile a worker of one process that drains short tasks, on a PostgreSQL of its own."""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats

from tests.__main__ import postgres


def main() -> None:
    """Print the functions that take most of the time, or write all of them to a file for a viewer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000, help="Tasks to drain (20,000).")
    parser.add_argument("--lines", type=int, default=40, help="Functions to print (40).")
    parser.add_argument(
        "--sort", default="tottime", help="Order of the functions: tottime, cumulative, ncalls (tottime)."
    )
    parser.add_argument("--output", help="A file for the profile instead, as snakeviz and others read it.")
    options = parser.parse_args()
    with postgres() as url:
        os.environ |= {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}

        import django

        django.setup()

        from django.core.management import call_command
        from django.db import connections

        from tests.jobs.tasks import add

        call_command("migrate", verbosity=0)
        for start in range(0, options.tasks, 10_000):
            add.send_many({"a": 1} for _ in range(min(10_000, options.tasks - start)))
        profile = cProfile.Profile()
        profile.enable()
        call_command("horsies_worker", drain=True, verbosity=0, no_reaper=True)
        profile.disable()
        connections.close_all()
    if options.output:
        profile.dump_stats(options.output)
    else:
        pstats.Stats(profile).sort_stats(options.sort).print_stats(options.lines)


if __name__ == "__main__":
    main()
