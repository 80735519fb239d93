"""``manage.py horsies_check_deploy``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandParser

from horsies_django.management.base import QueueCommand, usage_errors
from horsies_django.ops.deploy_check import DeployReport, check_deploy


class Command(QueueCommand):
    """Lists which rows, schedules and workflows in flight the code of this process would break."""

    help = (
        "List what this code would break if it were deployed now: tasks that have not ended whose task, queue or type "
        "it does not know, or whose arguments no longer fit; schedules; and nodes of workflows in flight. "
        "It also lists tasks whose steps have begun under another version of the code, and workers of another release "
        "of horsies-django. Run it with the new code on the live database. It changes nothing, calls no task, and "
        "reads a bounded number of rows. "
        "--backend also reads HORSIES_CHECK_DEPLOY_BACKEND; the flag takes precedence. Exit status: 0 nothing breaks; "
        "1 something would break, or the database or its tables are unavailable; 2 wrong usage."
    )

    backend_help = "Only rows of this key of TASKS (default: all in the database of default)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")
        self.add_backend(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        with usage_errors():
            alias = self.flag("backend", options["backend"])[1]
            database = self.backend(alias).config.database
        with self.tables(database):
            report = check_deploy(alias)
        if options["json"]:
            self.stdout.write(json.dumps(report.as_json(), indent=2))
        else:
            self.write_lines(*_lines(report))
        if report.breakages:
            sys.exit(1)


def _lines(report: DeployReport) -> Iterator[str]:
    yield from map(str, report.breakages)
    yield from map(str, report.warnings)
    yield from report.unread
    read = ", ".join(f"{name} {count:,}" for name, count in report.read.items())
    verdict = f"{len(report.breakages)} found" if report.breakages else "Nothing would break"
    yield f"{verdict}. Read: {read}."
