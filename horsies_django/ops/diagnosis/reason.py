"""A reason for which a task or a workflow node is not running, with its sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Model, TextChoices
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ...core.numbers import fill_numbers, format_duration, format_relative

#: For how long a task has held a limit.
HELD_FOR: Final = _("{status} for {duration}")


class ReasonCode(TextChoices):
    """The kind of reason that holds back a task or a workflow node, with its sentence."""

    SCHEDULED = "SCHEDULED", _("It is scheduled and not due yet.")
    RETRYING = "RETRYING", _("It will be retried after attempt %(attempt)d and is not due yet.")
    PAST_DEADLINE = "PAST_DEADLINE", _("Its deadline has passed: the reaper will expire the task.")
    WORKFLOW_PAUSED = (
        "WORKFLOW_PAUSED",
        _("Its workflow is paused. Tasks that have not started are withdrawn and run when the workflow is resumed."),
    )
    QUEUE_PAUSED = "QUEUE_PAUSED", _("The queue %(name)s is paused.")
    QUEUE_FULL = "QUEUE_FULL", _("The queue %(name)s has reached its limit: %(held)d of %(most)d in progress.")
    RATE_LIMITED = "RATE_LIMITED", _("The rate limit of %(name)s is reached: %(rate)s.")
    NO_WORKER = (
        "NO_WORKER",
        _("No worker that is online serves the queue %(name)s. Start one: manage.py horsies_worker"),
    )
    WORKERS_STOPPING = "WORKERS_STOPPING", _("Every worker that serves the queue %(name)s is stopping.")
    WORKERS_QUIET = "WORKERS_QUIET", _("Every worker that serves the queue %(name)s is quiet or stopping.")
    WORKERS_STALLED = (
        "WORKERS_STALLED",
        _("Every worker that serves the queue %(name)s stands still, is quiet or is stopping."),
    )
    OTHER_VERSION = (
        "OTHER_VERSION",
        _(
            "It is waiting for a worker with another version of the code: %(versions)s does not know "
            "the task or one of its values."
        ),
    )
    WORKERS_BUSY = "WORKERS_BUSY", _("All slots of the workers that serve its queue are in use: %(slots)d.")
    LIMIT_FULL = "LIMIT_FULL", _("The limit %(name)s is reached: %(held)d of %(most)d in use.")
    OTHERS_FIRST = "OTHERS_FIRST", _("Due tasks of its queue that are ahead of it: %(count)s.")
    CLAIMED = "CLAIMED", _("A worker has claimed the task in advance and starts it when a slot is free.")
    SILENT = (
        "SILENT",
        _("Its worker is not responding. If it stays that way, the reaper recovers the task if the settings allow it."),
    )
    STALLED = (
        "STALLED",
        _("Its worker stands still. If it stays that way, its supervisor kills it and recovers the task."),
    )
    WAITS_FOR_NODES = "WAITS_FOR_NODES", _("It is waiting for other nodes: %(count)d.")
    SLEEPS = "SLEEPS", _("It is sleeping.")
    WAITS_FOR_EVENT = "WAITS_FOR_EVENT", _("It is waiting for the event %(name)s.")
    WAITS_FOR_WORKFLOW = "WAITS_FOR_WORKFLOW", _("It is waiting for the end of a workflow or batch.")
    WAITS_FOR_STEP = "WAITS_FOR_STEP", _("It is waiting to try the step %(name)s again.")
    NOTHING = (
        "NOTHING",
        _("Nothing blocks it: a worker should claim it within seconds. If none does, check the logs of the workers."),
    )


#: The reason of a task that has begun and waits, by the start of what it waits for.
WAITS: Final = {
    "event": ReasonCode.WAITS_FOR_EVENT,
    "workflow": ReasonCode.WAITS_FOR_WORKFLOW,
    "step": ReasonCode.WAITS_FOR_STEP,
    "sleep": ReasonCode.SLEEPS,
}

#: The reasons whose time is a part of their text.
_TIMED: Final = frozenset({ReasonCode.RATE_LIMITED, *WAITS.values()})


@dataclass(frozen=True, slots=True)
class RelatedRow:
    """A row that a reason refers to: its model, its primary key and a label.

    Of a task that holds a limit also its translated status, and since when it has it.
    """

    model: type[Model]
    key: Any
    label: str
    status: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: its code, a translated sentence, a time if one applies, and the rows it is about.

    ``more`` is the number of rows that it is about besides those that ``about`` names.
    """

    code: ReasonCode
    words: str
    when: datetime | None = None
    about: tuple[RelatedRow, ...] = ()
    more: int = 0

    @classmethod
    def of(
        cls,
        code: ReasonCode,
        when: datetime | None = None,
        about: Sequence[RelatedRow] = (),
        more: int = 0,
        **values: Any,
    ) -> Reason:
        """Return the reason with this code; ``values`` fill in its sentence."""
        return cls(code, fill_numbers(str(code.label), values), when, tuple(about), more)

    def as_text(self, now: datetime) -> str:
        """Return it as one line that names the tasks that hold a limit, and when a rate admits the next one."""
        holders = [
            f"{row.label} {row.key} ({HELD_FOR.format(status=row.status, duration=format_duration(now - row.since))})"
            for row in self.about
            if row.since is not None
        ]
        names = ", ".join([*holders, and_more(self.more)] if self.more else holders)
        when = ""
        if self.when is not None and self.code in _TIMED:
            when = f"({format_relative((now - self.when).total_seconds())})"
        return " ".join(filter(None, (self.words, names, when)))


def and_more(count: int) -> str:
    """Return how many rows there are besides those before it."""
    return fill_numbers(ngettext("and %d more", "and %d more", count), count)
