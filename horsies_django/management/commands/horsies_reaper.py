"""``manage.py horsies_reaper``."""

from __future__ import annotations

import signal
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from horsies_django.reaper.loop import Reaper
from horsies_django.worker.connection import own_connection
from horsies_django.worker.console import log_to_console
from horsies_django.worker.plan import horsies_backend


class Command(BaseCommand):
    """Runs the duties of the reaper once, or until stopped."""

    help = "Recover tasks of dead workers and expire overdue ones. Workers do so too; any number of reapers is safe."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="Run one pass, print what each duty did, and exit.")
        parser.add_argument(
            "--interval", type=_positive, metavar="SECONDS", help="Between two passes (default: check_interval_ms)."
        )
        parser.add_argument("--backend", default="default", metavar="ALIAS", help="A key of TASKS (default: default).")

    def handle(self, *args: Any, once: bool, interval: float | None, backend: str, **options: Any) -> None:
        try:
            settings = horsies_backend(backend).config
        except ValueError as error:
            raise CommandError(str(error), returncode=2) from error
        log_to_console(options["verbosity"])
        reaper = Reaper(settings, interval)
        with own_connection(settings.database, "reaper"):
            if not once:
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, lambda *_: reaper.stop())
                reaper.run()
                return
            reports = reaper.run_once()
        for report in reports:
            self.stdout.write(str(report))
        if any(report.error for report in reports):
            raise CommandError("A duty could not be done.", returncode=1)


def _positive(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 < seconds < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds
