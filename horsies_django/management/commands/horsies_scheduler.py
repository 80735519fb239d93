"""``manage.py horsies_scheduler``."""

from __future__ import annotations

from django.core.management.base import CommandError

from horsies_django.core.options import Options
from horsies_django.core.printable import one_line
from horsies_django.management.loop_command import LoopCommand
from horsies_django.schedules.scheduler import Scheduler


class Command(LoopCommand):
    """Sends the tasks and workflows of due schedules, once or until stopped."""

    role = "scheduler"
    help = (
        "Write the schedules that code declares to the database, and send what is due. Every worker runs a scheduler "
        "too; any number of schedulers is safe. --interval and --backend also read HORSIES_SCHEDULER_INTERVAL and "
        "HORSIES_SCHEDULER_BACKEND; the flag takes precedence."
    )
    once_help = "Write declared schedules, send what is due now, print a report, and exit."
    interval_help = "Maximum seconds between two passes (default: 1)."

    def loop(self, options: Options, backend: str, interval: float | None) -> Scheduler:
        return Scheduler(options, backend, interval)

    def once(self, loop: Scheduler) -> None:
        self.stdout.write(str(loop.sync()))
        report = loop.run_all()
        deferred = (f"{name}: left for later: {error}" for name, error in report.deferred.items())
        for line in (*map(str, report.fired), *deferred):
            self.stdout.write(one_line(line))
        self.stdout.write(str(report))
        if report.deferred or any(fired.error for fired in report.fired):
            raise CommandError("A schedule could not be sent.", returncode=1)
