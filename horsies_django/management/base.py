"""The base class of all commands: it escapes control characters in the output and logs operations."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, OutputWrapper

from horsies_django.core.operations import acting_as, system_user
from horsies_django.core.printable import PrintableOutput


class QueueCommand(BaseCommand):
    """A command whose output and errors pass through :class:`~horsies_django.core.printable.PrintableOutput`."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Wrap the outputs, which Django sets on creation and again in ``call_command``."""
        if name in ("stdout", "stderr") and type(value) is OutputWrapper:
            value = PrintableOutput(value._out)  # type: ignore[arg-type]  # a stream
        super().__setattr__(name, value)

    @property
    def owns_process(self) -> bool:
        """Whether the process runs only this command, so that it was not called by other Python code."""
        return getattr(self, "_called_from_command_line", False)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command. Operations are logged with the operating system's user and the command's name."""
        with acting_as(system_user(), type(self).__module__.rpartition(".")[2]):
            return super().execute(*args, **options)

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Run system checks with the unwrapped stderr: their messages are coloured and contain no data of rows."""
        guarded = self.stderr
        super().__setattr__("stderr", OutputWrapper(guarded._out))  # type: ignore[arg-type]  # a stream
        try:
            super().check(*args, **kwargs)
        finally:
            super().__setattr__("stderr", guarded)
