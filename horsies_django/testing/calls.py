"""``EnqueuedCall``: a call that was sent and has not started."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ..enqueue.handle import TaskHandle


@dataclass(frozen=True, slots=True)
class EnqueuedCall:
    """A call that was sent and has not started. ``run_after`` is None unless it was scheduled.

    If the call was captured, ``run_after`` is as the sender gave it, and ``handle`` is that of a task that does not
    exist.
    """

    task_name: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue_name: str
    priority: int
    run_after: datetime | timedelta | None
    handle: TaskHandle[Any]

    def __str__(self) -> str:
        arguments = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        due = "" if self.run_after is None else f", due {self.run_after}"
        return f"{self.task_name}({', '.join(arguments)}) in queue {self.queue_name}{due}"
