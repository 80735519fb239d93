"""``manage.py horsies_scheduler``."""

from __future__ import annotations

import signal
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from horsies_django.framework import own_logging
from horsies_django.management.variables import flag_or_variable, positive_seconds
from horsies_django.schedules.beat import Beat
from horsies_django.tables import check_tables
from horsies_django.worker.connection import own_connection
from horsies_django.worker.console import log_to_console
from horsies_django.worker.plan import horsies_backend

COMMAND: Final = "horsies_scheduler"


class Command(BaseCommand):
    """Sends what schedules have due, once or until stopped."""

    help = (
        "Write the schedules of the code into rows, and send what is due. Workers do so too; any number of schedulers "
        "is safe. --interval and --backend also read HORSIES_SCHEDULER_INTERVAL and HORSIES_SCHEDULER_BACKEND; a flag "
        "wins."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="Sync, send what is due now, print it, and exit.")
        parser.add_argument("--interval", metavar="SECONDS", help="Longest time between two looks (default: 1).")
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
        beat = Beat(settings, alias or "default", seconds)
        with own_logging(), own_connection(settings.database, "scheduler"):
            if not once:
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, lambda *_: beat.stop())
                beat.run()
                return
            self.stdout.write(str(beat.sync()))
            report = beat.run_all()
        for one in (*report.passed, *report.left):
            self.stdout.write(str(one))
        self.stdout.write(str(report))
        if report.left or any(passed.error for passed in report.passed):
            raise CommandError("A schedule could not be sent.", returncode=1)
