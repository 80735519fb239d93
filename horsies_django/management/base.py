"""The base class of all commands: output, logs of operations, backend, database connection and exit status."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.db import DatabaseError

from horsies_django.core.backends import ConfiguredBackend, horsies_backend
from horsies_django.core.operations import acting_as
from horsies_django.core.platform import system_user
from horsies_django.core.printable import PrintableOutput, one_line
from horsies_django.db.connection import own_connection
from horsies_django.management.environment import flag_or_variable
from horsies_django.models.check_migrated import check_tables


class QueueCommand(BaseCommand):
    """A command whose output and errors pass through :class:`~horsies_django.core.printable.PrintableOutput`."""

    backend_help = "A key of TASKS (default: default)."

    def __setattr__(self, name: str, value: Any) -> None:
        """Wrap the outputs, which Django sets on creation and again in ``call_command``."""
        if name in ("stdout", "stderr") and type(value) is OutputWrapper:
            value = PrintableOutput(value._out)  # type: ignore[arg-type]  # a stream
        super().__setattr__(name, value)

    @property
    def command(self) -> str:
        """The name of the command, as ``horsies_queue``."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def owns_process(self) -> bool:
        """Whether the process runs only this command, so that it was not called by other Python code."""
        return getattr(self, "_called_from_command_line", False)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command. Operations are logged with the operating system's user and the command's name."""
        with acting_as(system_user(), self.command):
            return super().execute(*args, **options)

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Run system checks with the unwrapped stderr: their messages are coloured and contain no data of rows."""
        guarded = self.stderr
        super().__setattr__("stderr", OutputWrapper(guarded._out))  # type: ignore[arg-type]  # a stream
        try:
            super().check(*args, **kwargs)
        finally:
            super().__setattr__("stderr", guarded)

    def add_backend(self, parser: CommandParser, **kwargs: Any) -> None:
        """Add ``--backend``."""
        parser.add_argument("--backend", metavar="ALIAS", help=self.backend_help, **kwargs)

    def add_action(self, actions: Any, name: str, text: str, json_help: str = "") -> CommandParser:
        """Add an action, with ``--json`` if it has a help text. ``--backend`` may stand before or after the action."""
        parser: CommandParser = actions.add_parser(name, help=text, description=text)
        self.add_backend(parser, default=SUPPRESS)
        if json_help:
            parser.add_argument("--json", action="store_true", help=json_help)
        return parser

    def flag(self, name: str, value: Any, parse: Callable[[str], Any] = str) -> tuple[str, Any]:
        """Return the source of a flag's value and the value: see :func:`.environment.flag_or_variable`."""
        return flag_or_variable(self.command, name, value, parse)

    def backend(self, alias: str | None) -> ConfiguredBackend:
        """Return the backend that ``--backend`` or its variable names. Raises ValueError or ImproperlyConfigured."""
        backend = horsies_backend(self.flag("backend", alias)[1] or "default")
        backend.config  # noqa: B018  # raises for mistakes
        return backend

    @contextmanager
    def tables(self, database: str, *, needs_grants: bool = False) -> Iterator[None]:
        """Work on the tables of a database, which have to be migrated, on a connection of this command's own.

        Errors of the database end the command with exit status 1.
        """
        try:
            check_tables(database, needs_grants=needs_grants)
            with own_connection(database, self.command.removeprefix("horsies_").replace("_", " ")):
                yield
        except (ImproperlyConfigured, DatabaseError) as error:
            raise CommandError(str(error)) from error

    def write_lines(self, *lines: str) -> None:
        """Print each text as one line."""
        for line in lines:
            self.stdout.write(one_line(line))


@contextmanager
def usage_errors() -> Iterator[None]:
    """End the command with exit status 2 for errors in its flags and in the settings."""
    try:
        yield
    except (ValueError, ImproperlyConfigured) as error:
        raise CommandError(str(error), returncode=2) from error


def number_text(number: int, is_more: bool = False) -> str:
    """Return a number as commands print it in every language, with a plus sign if it is a lower bound."""
    return f"{number:,}" + ("+" if is_more else "")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> Iterable[str]:
    """Yield the lines of a table. The first ``left`` columns and columns without a head are left-aligned."""
    heads, rows = tuple(heads), [tuple(map(one_line, row)) for row in rows]
    widths = [max(len(row[at]) for row in (heads, *rows)) for at in range(len(heads))]
    for row in (heads, *rows):
        cells = [
            text.ljust(width) if at < left or not heads[at] else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
