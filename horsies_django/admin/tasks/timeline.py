"""A task's timeline: the steps of its life, in a table and as bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...core.durations import format_duration
from ...core.status import AttemptOutcome, TaskStatus
from ...models import Task, TaskAttempt
from ...ops.diagnosis import Reason, ReasonCode
from ..ages import counted

#: Units of the SVG.
WIDTH: Final = 1_000
MIN_WIDTH: Final = 3

#: Number of steps shown before the rest is folded.
MAX_UNFOLDED: Final = 12


class StepKind(StrEnum):
    """The kind of a step; also the CSS class of its bar. All but ``runs`` and ``fails`` are waiting."""

    LATER = "later"
    BLOCKED = "blocked"
    WAITS = "waits"
    CLAIMED = "claimed"
    RUNS = "runs"
    FAILS = "fails"
    STOPPED = "stopped"
    EARLIER = "earlier"


#: What the kinds are called in the legend, in its order.
_KIND_WORDS: Final = {
    StepKind.LATER: gettext_lazy("Waiting until due"),
    StepKind.BLOCKED: gettext_lazy("Blocked"),
    StepKind.WAITS: gettext_lazy("Waiting for a worker"),
    StepKind.CLAIMED: gettext_lazy("Waiting for a slot"),
    StepKind.RUNS: gettext_lazy("Running"),
    StepKind.FAILS: gettext_lazy("Running, failed"),
    StepKind.STOPPED: gettext_lazy("Running, cancelled"),
    StepKind.EARLIER: gettext_lazy("Not shown in detail"),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One step from one time to another. ``is_open``: it has not ended by ``until``, the current time."""

    kind: StepKind
    words: str
    since: datetime
    until: datetime
    is_open: bool = False

    @property
    def took(self) -> timedelta:
        """How long it took, or has taken so far."""
        return max(self.until - self.since, timedelta())

    @property
    def duration(self) -> str:
        """How long it took, or has taken so far, in words."""
        return _in_words(self.took, is_open=self.is_open)


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """A step as a bar."""

    kind: StepKind
    x: float
    width: float
    title: str


#: What a due task waits for, by the reason that no worker may claim it.
_HOLDS: Final = {
    ReasonCode.PAST_DEADLINE: gettext_lazy("Overdue, waiting to expire"),
    ReasonCode.WORKFLOW_PAUSED: gettext_lazy("Waiting for its workflow to be resumed"),
    ReasonCode.LIMIT_FULL: gettext_lazy("Waiting for its limit"),
    ReasonCode.RATE_LIMITED: gettext_lazy("Waiting for its rate limit"),
    ReasonCode.QUEUE_PAUSED: gettext_lazy("Waiting for its queue to be resumed"),
    ReasonCode.QUEUE_FULL: gettext_lazy("Waiting for the limit of its queue"),
}


def steps_of(task: Task, attempts: Sequence[TaskAttempt], now: datetime, reasons: Sequence[Reason]) -> list[Step]:
    """Return the steps of a task in order.

    ``attempts`` are its latest, in order; ``now`` is the database's time; ``reasons`` are why it is not running.
    """
    steps = [*_past(task, attempts), *_present(task, attempts, now)]
    held_by = next((_HOLDS[reason.code] for reason in reasons if reason.code in _HOLDS), None)
    if held_by is not None and steps and steps[-1].is_open and steps[-1].kind in (StepKind.BLOCKED, StepKind.WAITS):
        steps[-1] = replace(steps[-1], kind=StepKind.BLOCKED, words=str(held_by))
    return [step for step in steps if step.until >= step.since]


def _past(task: Task, attempts: Sequence[TaskAttempt]) -> Iterator[Step]:
    since = task.sent_at
    if attempts and attempts[0].attempt > 1:
        words = _("Attempts 1 to %d, and the waits between them") % (attempts[0].attempt - 1)
        yield Step(StepKind.EARLIER, words, since, attempts[0].started_at)
        since = attempts[0].started_at
    for number, attempt in enumerate(attempts):
        is_last = number == len(attempts) - 1 and task.started_at == attempt.started_at
        is_first = attempt.attempt == 1
        yield from _waiting(task, since, attempt.due_at, attempt.started_at, is_first=is_first, is_latest=is_last)
        is_good = attempt.outcome == AttemptOutcome.COMPLETED
        words = _("Attempt %(number)d: %(outcome)s") % {
            "number": attempt.attempt,
            "outcome": attempt.get_outcome_display(),
        }
        yield Step(StepKind.RUNS if is_good else StepKind.FAILS, words, attempt.started_at, attempt.finished_at)
        since = attempt.finished_at


def _waiting(
    task: Task,
    since: datetime,
    due: datetime,
    until: datetime,
    *,
    is_first: bool,
    is_latest: bool = True,
    is_open: bool = False,
) -> Iterator[Step]:
    """Return the steps before a start: until its time came, its limit released it, it was claimed, and it started.

    The row has the times of the latest start only. Of an earlier one it can tell what the sender asked for, and what
    held it back if the task has a limit or was last released then.
    """
    asked = min(task.run_after or since, due) if is_first else due
    time_came = task.enqueued_at if is_latest else asked
    if since < time_came <= until:
        words = _("Scheduled for later") if is_first else _("Waited for the next attempt")
        yield Step(StepKind.LATER, words, since, time_came)
        since = time_came
    is_blocked = is_latest and task.blocked
    released = until if is_blocked else due
    if since < released <= until:
        kind = StepKind.BLOCKED
        words = _("Waited for its workflow to be resumed") if task.limit_key is None else _("Waited for its limit")
        if not is_latest and task.limit_key is None and task.released_at != due:
            kind, words = StepKind.LATER, _("Waiting until due")
        yield Step(kind, words, since, released, is_open and is_blocked)
        since = released
    claimed = task.claimed_at if is_latest else None
    if claimed is not None and since < claimed < until:
        yield Step(StepKind.WAITS, _("Waited for a worker"), since, claimed)
        words = _("Claimed, waiting for a slot") if is_open else _("Claimed, waited for a slot")
        yield Step(StepKind.CLAIMED, words, claimed, until, is_open)
    elif since < until:
        words = _("Waiting for a worker") if is_open else _("Waited for a worker")
        yield Step(StepKind.WAITS, words, since, until, is_open)


def _present(task: Task, attempts: Sequence[TaskAttempt], now: datetime) -> Iterator[Step]:
    """Return the steps since the last attempt that ended."""
    last = attempts[-1] if attempts else None
    since = last.finished_at if last else task.sent_at
    is_first = last is None and task.attempt <= 1
    if last is not None and task.started_at == last.started_at and task.finished_at is not None:
        return  # the attempt ended the task
    if task.status == TaskStatus.PENDING and task.enqueued_at > now:
        words = _("Scheduled for later") if is_first and not task.retry_count else _("Waiting for the next attempt")
        yield Step(StepKind.LATER, words, since, task.enqueued_at)
        return
    until = task.started_at or task.finished_at or now
    is_open = task.started_at is None and task.finished_at is None
    yield from _waiting(task, since, task.due_at, until, is_first=is_first, is_open=is_open)
    if task.started_at is not None:
        if task.finished_at is None:
            yield Step(StepKind.RUNS, _("Attempt %d is running") % task.attempt, task.started_at, now, is_open=True)
        else:
            words = _("Attempt %d ran until the task was cancelled") % task.attempt
            yield Step(StepKind.STOPPED, words, task.started_at, task.finished_at)


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One kind of step, and how long its steps took together."""

    kind: StepKind
    words: str
    duration: str


def legend_of(steps: Sequence[Step]) -> list[LegendEntry]:
    """Return the kinds of these steps with their total durations."""
    totals: dict[StepKind, timedelta] = {}
    for step in steps:
        totals[step.kind] = totals.get(step.kind, timedelta()) + step.took
    growing = {step.kind for step in steps if step.is_open}
    return [
        LegendEntry(kind, str(words), _in_words(totals[kind], is_open=kind in growing))
        for kind, words in _KIND_WORDS.items()
        if kind in totals
    ]


def _in_words(duration: timedelta, *, is_open: bool) -> str:
    return counted(duration) if is_open else format_duration(duration)


def bars_of(steps: Sequence[Step], until: datetime) -> list[TimelineBar]:
    """Return the bars side by side, as wide as their steps are long, with a minimum width.

    An open step is drawn up to ``until``.
    """
    steps = [replace(step, until=max(step.until, until)) if step.is_open else step for step in steps]
    total = sum(step.took.total_seconds() for step in steps)
    free = WIDTH - MIN_WIDTH * len(steps)
    bars, x = list[TimelineBar](), 0.0
    for step in steps:
        share = step.took.total_seconds() / total if total else 1 / len(steps)
        width = MIN_WIDTH + max(free, 0) * share
        title = step.words if step.is_open else f"{step.words}: {format_duration(step.took)}"
        bars.append(TimelineBar(step.kind, round(x, 2), round(width, 2), title))
        x += width
    return bars
