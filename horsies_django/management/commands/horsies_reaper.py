"""``manage.py horsies_reaper``."""

from __future__ import annotations

from django.core.management.base import CommandError

from horsies_django.core.options import Options
from horsies_django.core.printable import one_line
from horsies_django.management.loop_command import LoopCommand
from horsies_django.reaper.loop import Reaper


class Command(LoopCommand):
    """Runs the duties of the reaper once, or until stopped."""

    role = "reaper"
    help = (
        "Recover the tasks of dead workers, expire overdue tasks, repair workflows and delete old rows. Every worker "
        "runs a reaper too; any number of reapers is safe. --interval and --backend also read HORSIES_REAPER_INTERVAL "
        "and HORSIES_REAPER_BACKEND; the flag takes precedence. -v 2 prints a line for each pass."
    )
    once_help = "Run one pass, print what each duty did, and exit."
    interval_help = "Seconds between two passes (default: check_interval_ms of the settings)."

    def loop(self, options: Options, backend: str, interval: float | None) -> Reaper:
        if self.verbosity < 2:
            return Reaper(options, backend, interval)
        return Reaper(options, backend, interval, on_pass=self._print_line)

    def _print_line(self, line: str) -> None:
        """Print a line whatever LOGGING says, and flush it, because a service manager reads it through a pipe."""
        self.stdout.write(one_line(line))
        self.stdout.flush()

    def once(self, loop: Reaper) -> None:
        reports = loop.run_once()
        for report in reports:
            self.stdout.write(str(report))
        if any(report.error for report in reports):
            raise CommandError("A duty failed.", returncode=1)
