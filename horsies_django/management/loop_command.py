"""The base class of commands that run one pass of a loop, or loop until stopped."""

from __future__ import annotations

from abc import abstractmethod
from datetime import timedelta
from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser

from horsies_django.core.options import Options
from horsies_django.db.connection import own_connection
from horsies_django.enqueue.django_result import own_logging
from horsies_django.management.base import QueueCommand, usage_errors
from horsies_django.management.environment import positive_seconds
from horsies_django.models.check_migrated import MissingPrivilege, check_tables
from horsies_django.worker.console_logging import log_to_console
from horsies_django.worker.stop_signals import LEAVE_TIMEOUT, starting, stop_signals


class LoopCommand(QueueCommand):
    """A command with ``--once``, ``--interval`` and ``--backend`` that uses its own database connection."""

    role: ClassVar[str]  # of horsies_<role>
    once_help: ClassVar[str]
    interval_help: ClassVar[str]
    verbosity = 1

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the three flags."""
        parser.add_argument("--once", action="store_true", help=self.once_help)
        parser.add_argument("--interval", metavar="SECONDS", help=self.interval_help)
        self.add_backend(parser)

    def handle(
        self,
        *args: Any,
        once: bool,
        interval: str | float | timedelta | None,
        backend: str | None,
        **options: Any,
    ) -> None:
        """Read the flags or their variables, and run the loop. Raises CommandError."""
        self.verbosity = options["verbosity"]
        log_to_console(self.verbosity)
        with usage_errors():
            configured = self.backend(backend)
            settings = configured.config
            seconds = positive_seconds(*self.flag("interval", interval))
        try:
            with starting(owns_process=self.owns_process and not once):
                check_tables(settings.database, needs_grants=True)
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        loop = self.loop(settings, configured.alias, seconds)
        with own_logging(), own_connection(settings.database, self.role, waits=True):
            try:
                if once:
                    self.once(loop)
                    return
                # Stopping in the middle is safe: the transaction rolls back, and the next pass does the work.
                with stop_signals(loop.stop, LEAVE_TIMEOUT, 0.0, owns_process=self.owns_process):
                    loop.run()
            except MissingPrivilege as error:
                raise CommandError(str(error)) from error

    @abstractmethod
    def loop(self, options: Options, backend: str, interval: float | None) -> Any:
        """Return the service: ``run()`` runs until stopped, and a signal handler calls ``stop()``."""

    @abstractmethod
    def once(self, loop: Any) -> None:
        """Run one pass and print its report. Raises CommandError if a part failed."""
