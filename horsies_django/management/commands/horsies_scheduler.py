"""``manage.py horsies_scheduler``."""

from __future__ import annotations

from django.core.management.base import CommandError

from horsies_django.core.options import Options
from horsies_django.core.printable import one_line
from horsies_django.management.loop_command import LoopCommand
from horsies_django.schedules.scheduler import Scheduler


class Command(LoopCommand[Scheduler]):
    """Sends what schedules have due, once or until stopped."""

    role = "scheduler"
    help = (
        "Write the schedules of the code into rows, and send what is due. Workers do so too; any number of schedulers "
        "is safe. --interval and --backend also read HORSIES_SCHEDULER_INTERVAL and HORSIES_SCHEDULER_BACKEND; a flag "
        "wins."
    )
    once_help = "Sync, send what is due now, print it, and exit."
    interval_help = "Longest time between two looks (default: 1)."

    def loop(self, options: Options, backend: str, interval: float | None) -> Scheduler:
        return Scheduler(options, backend, interval)

    def once(self, loop: Scheduler) -> None:
        self.stdout.write(str(loop.sync()))
        report = loop.run_all()
        for one in (*report.fired, *report.deferred):
            self.stdout.write(one_line(str(one)))
        self.stdout.write(str(report))
        if report.deferred or any(passed.error for passed in report.fired):
            raise CommandError("A schedule could not be sent.", returncode=1)
