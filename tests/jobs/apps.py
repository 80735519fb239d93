"""The app of the test tasks; on request it imports a module, or counts the statements of a process."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created


class JobsConfig(AppConfig):
    name = "tests.jobs"
    label = "jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        if os.environ.get("BREAK_RUNNERS") and sys.argv[0].endswith("child.py"):
            raise RuntimeError("this runner can't start")
        if module := os.environ.get("TEST_IMPORT"):  # where the definitions of workflows are
            import_module(module)
        if path := os.environ.get("COUNT_STATEMENTS"):
            self.tally = Tally(path)
            connection_created.connect(self.tally.watch)


class Tally:
    """Appends a byte to a file for each statement, BEGIN and COMMIT of every process that shares the file."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def watch(self, sender: Any, connection: Any, **kwargs: Any) -> None:
        commit = connection._commit
        connection.execute_wrappers.append(self.count)

        def counted() -> Any:
            os.write(self.file, b"..")  # the BEGIN that psycopg sends by itself, and this COMMIT
            return commit()

        connection._commit = counted

    def count(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        os.write(self.file, b".")
        return execute(sql, params, many, context)
