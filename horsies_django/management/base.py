"""What all commands have in common: what they print can't control a terminal, and what they do is logged."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, OutputWrapper

from horsies_django.core.operations import acting_as, system_user
from horsies_django.core.printable import PrintableOutput


class QueueCommand(BaseCommand):
    """A command whose output, errors too, passes through :class:`~horsies_django.core.printable.PrintableOutput`."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Django gives a command its outputs when it is made, and others when it is called from Python."""
        if name in ("stdout", "stderr") and type(value) is OutputWrapper:
            value = PrintableOutput(value._out)  # type: ignore[arg-type]  # a stream
        super().__setattr__(name, value)

    @property
    def owns_process(self) -> bool:
        """Whether the process is there for this command alone, and not for code that has called it from Python."""
        return getattr(self, "_called_from_command_line", False)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run it; what it does to rows is logged as done by the operating system's user, with this command."""
        with acting_as(system_user(), type(self).__module__.rpartition(".")[2]):
            return super().execute(*args, **options)

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Run system checks, whose messages come with colours in them and hold nothing of rows."""
        guarded = self.stderr
        super().__setattr__("stderr", OutputWrapper(guarded._out))  # type: ignore[arg-type]  # a stream
        try:
            super().check(*args, **kwargs)
        finally:
            super().__setattr__("stderr", guarded)
