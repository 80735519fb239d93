"""``manage.py horsies_check_deploy``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from horsies_django.core.backends import horsies_backend
from horsies_django.core.printable import one_line
from horsies_django.db.connection import own_connection
from horsies_django.management.base import QueueCommand
from horsies_django.management.environment import flag_or_variable
from horsies_django.models.check_migrated import check_tables
from horsies_django.ops.deploy_check import DeployReport, check_deploy

COMMAND: Final = "horsies_check_deploy"


class Command(QueueCommand):
    """Lists which rows, schedules and workflows in flight the code of this process would break."""

    help = (
        "List what this code would break if it were deployed now: tasks that have not ended whose task, queue or type "
        "it does not know, or whose arguments no longer fit; schedules; and nodes of workflows in flight. Run it with "
        "the new code on the live database. It changes nothing, calls no task, and reads a bounded number of rows. "
        "--backend also reads HORSIES_CHECK_DEPLOY_BACKEND; the flag takes precedence. Exit status: 0 nothing breaks; "
        "1 something would break, or the database or its tables are unavailable; 2 wrong usage."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")
        parser.add_argument(
            "--backend",
            metavar="ALIAS",
            help="Only rows of this key of TASKS (default: all in the database of default).",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            _, alias = flag_or_variable(COMMAND, "backend", options["backend"], str)
            database = horsies_backend(alias or "default").config.database
        except (ValueError, ImproperlyConfigured) as error:
            raise CommandError(str(error), returncode=2) from error
        try:
            check_tables(database)
            with own_connection(database, "check deploy"):
                report = check_deploy(alias)
        except (ImproperlyConfigured, DatabaseError) as error:
            raise CommandError(str(error)) from error
        if options["json"]:
            self.stdout.write(json.dumps(report.as_json(), indent=2))
        else:
            for line in _lines(report):
                self.stdout.write(one_line(line))
        if report.breakages:
            sys.exit(1)


def _lines(report: DeployReport) -> Iterator[str]:
    yield from map(str, report.breakages)
    yield from report.unread
    read = ", ".join(f"{name} {count:,}" for name, count in report.read.items())
    verdict = f"{len(report.breakages)} found" if report.breakages else "Nothing would break"
    yield f"{verdict}. Read: {read}."
