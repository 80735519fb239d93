"""``manage.py horsies_reaper``."""

from __future__ import annotations

import signal
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from horsies_django.framework import own_logging
from horsies_django.management.variables import flag_or_variable, positive_seconds
from horsies_django.reaper.loop import Reaper
from horsies_django.tables import check_tables
from horsies_django.worker.connection import own_connection
from horsies_django.worker.console import log_to_console
from horsies_django.worker.plan import horsies_backend

COMMAND: Final = "horsies_reaper"


class Command(BaseCommand):
    """Runs the duties of the reaper once, or until stopped."""

    help = (
        "Recover tasks of dead workers and expire overdue ones. Workers do so too; any number of reapers is safe. "
        "--interval and --backend also read HORSIES_REAPER_INTERVAL and HORSIES_REAPER_BACKEND; a flag wins."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="Run one pass, print what each duty did, and exit.")
        parser.add_argument("--interval", metavar="SECONDS", help="Between two passes (default: check_interval_ms).")
        parser.add_argument("--backend", metavar="ALIAS", help="A key of TASKS (default: default).")

    def handle(self, *args: Any, once: bool, interval: str | None, backend: str | None, **options: Any) -> None:
        log_to_console(options["verbosity"])
        try:
            _, alias = flag_or_variable(COMMAND, "backend", backend, str)
            settings = horsies_backend(alias or "default").config
            seconds = positive_seconds(*flag_or_variable(COMMAND, "interval", interval, str))
        except (ValueError, ImproperlyConfigured) as error:
            raise CommandError(str(error), returncode=2) from error
        try:
            check_tables(settings.database)
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        reaper = Reaper(settings, alias or "default", seconds)
        with own_logging(), own_connection(settings.database, "reaper"):
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
