"""Tasks that were chosen, by their ids or by what they are, and acting on them a bounded batch at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast
from uuid import UUID

from ...core.operations import log_operation
from ...models.transitions import TaskQuerySet
from ..keyset.estimate import upper_bound
from . import actions
from .actions import TaskAction
from .facts import Candidate, candidates
from .filters import TaskFilters
from .report import Report, Skipped

#: What is said of an id that no task has.
MISSING: Final = "there is no such task"


class Selection(ABC):
    """Tasks that something can be done to. Each verb returns a :class:`Report` and takes ``dry_run``.

    Nothing is one long statement or one transaction: what was done to one batch stays done, whatever comes after.
    """

    #: Among which they were chosen.
    rows: TaskQuerySet

    def run(self, *, dry_run: bool = False) -> Report:
        """Let scheduled and retrying tasks be due now (A3-101)."""
        return self.apply(actions.RUN, dry_run=dry_run)

    def cancel(self, *, include_running: bool = False, dry_run: bool = False) -> Report:
        """Cancel tasks that have not begun and, when asked, tell those that run to stop."""
        return self.apply(actions.CANCEL_RUNNING if include_running else actions.CANCEL, dry_run=dry_run)

    def retry(self, *, dry_run: bool = False) -> Report:
        """Run failed, cancelled and expired tasks again, with a fresh budget."""
        return self.apply(actions.RETRY, dry_run=dry_run)

    def move(self, *, queue: str | None = None, priority: int | None = None, dry_run: bool = False) -> Report:
        """Give tasks that have not begun another queue, another priority or both. Raises ValueError."""
        return self.apply(actions.move_action(queue, priority), dry_run=dry_run)

    def delete(self, *, dry_run: bool = False) -> Report:
        """Delete tasks that have ended and, by id or if their states were named, such that have not begun.

        Those that a worker holds stay (A3-101), and so do those that a workflow waits for.
        """
        return self.apply(actions.DELETE, dry_run=dry_run)

    def apply(self, action: TaskAction, *, dry_run: bool = False, limit: int | None = None) -> Report:
        """Do it to all of them, to ``limit`` at most."""
        report = Report(verb=action.name, is_dry=dry_run)
        for report in self.apply_in_batches(action, dry_run=dry_run, limit=limit):  # noqa: B007  # the last one counts
            pass
        return report

    def apply_in_batches(
        self, action: TaskAction, *, dry_run: bool = False, limit: int | None = None
    ) -> Iterator[Report]:
        """Do it batch by batch, and yield each time what has been done so far; log in the end what that was."""
        report = Report(verb=action.name, is_dry=dry_run)
        try:
            for rows, keys in self.batches(action):
                room = None if limit is None else limit - report.done
                step = _Batch(action, self.rows, rows, keys, room)
                report = step.preview(report) if dry_run else step.apply(report)
                yield report
                if limit is not None and report.done >= limit:
                    return
        finally:  # what breaks off has done something, too
            if not dry_run and (report.done or report.left):
                log_operation(
                    f"task.{action.name}", report.done, left=report.left or None, **action.log_fields, **self.log_fields
                )

    @property
    @abstractmethod
    def log_fields(self) -> Mapping[str, Any]:
        """What a line of the log says of which they are."""

    @abstractmethod
    def batches(self, action: TaskAction) -> Iterator[tuple[TaskQuerySet, Sequence[UUID]]]:
        """Yield the rows that may be acted on, and the ids of the next of them."""


@dataclass(frozen=True, slots=True)
class ByIds(Selection):
    """Tasks that are named. One by one, so that the report says of each what became of it."""

    rows: TaskQuerySet
    ids: tuple[UUID, ...]

    @property
    def log_fields(self) -> Mapping[str, Any]:
        """The ids, the first of them if they are many."""
        return {"ids": self.ids}

    def batches(self, action: TaskAction) -> Iterator[tuple[TaskQuerySet, Sequence[UUID]]]:
        """Yield each by itself."""
        for key in self.ids:
            yield self.rows, [key]


@dataclass(frozen=True, slots=True)
class Matching(Selection):
    """All tasks of some kind, from the newest to the oldest; those that are sent meanwhile are not meant."""

    rows: TaskQuerySet
    filters: TaskFilters

    @property
    def log_fields(self) -> Mapping[str, Any]:
        """The filters."""
        which = self.filters
        age = None if which.older_than is None else f"{which.older_than.total_seconds():g}s"
        states = sorted(which.states) or None
        return {"all": True, "status": states, "queue": which.queue, "task": which.task, "older_than": age}

    def batches(self, action: TaskAction) -> Iterator[tuple[TaskQuerySet, Sequence[UUID]]]:
        """Yield them by some hundreds, of the states that the verb takes if none are named.

        Raises ValueError if the verb takes none of the states that are.
        """
        which = narrow_to_action(self.filters, action)
        edge = upper_bound(self.rows)
        scan = which.scan(self.rows).sent_until(edge.asked_at)
        rows = cast("TaskQuerySet", scan.rows)
        for batch, _ in scan.id_batches(edge.upper):
            if batch:
                yield rows, batch


def narrow_to_action(which: TaskFilters, action: TaskAction) -> TaskFilters:
    """Return what a verb means by "all" of this. Raises ValueError if it takes none of the states that are named."""
    states = which.states or action.states_of_all
    if not states & action.states:
        allowed = ", ".join(sorted(action.states))
        raise ValueError(f"status is {', '.join(sorted(which.states))}; {action.name} takes {allowed}.")
    return replace(which, states=states & action.states)


@dataclass(frozen=True, slots=True)
class _Batch:
    """One batch: judged by what the rows say, then acted on in one go."""

    action: TaskAction
    all_rows: TaskQuerySet
    rows: TaskQuerySet
    keys: Sequence[UUID]
    room: int | None

    def preview(self, report: Report) -> Report:
        """Return the report with what would be done."""
        fit, left = self._split()
        return report.with_batch(len(fit), left, {})

    def apply(self, report: Report) -> Report:
        """Do it, and return the report with what was done."""
        fit, left = self._split()
        done = self.action.act(self._with_ids(fit)) if fit else 0
        more, unnamed = self._explain_missed(fit, len(fit) - done) if done < len(fit) else ([], {})
        return report.with_batch(done, [*left, *more], unnamed)

    def _split(self) -> tuple[list[UUID], list[Skipped]]:
        """Return those that it may be done to, as many as there is room for, and the others that came before."""
        found = {facts.id: facts for facts in candidates(self.all_rows.filter(pk__in=self.keys))}
        fit: list[UUID] = []
        left: list[Skipped] = []
        for key in self.keys:
            if self.room is not None and len(fit) >= self.room:
                break
            facts = found.get(key)
            if facts is None:
                left.append(Skipped(key, None, MISSING))
            elif why := self.action.why_not(facts):
                left.append(Skipped(key, facts.state, why))
            else:
                fit.append(key)
        return fit, left

    def _explain_missed(self, fit: Sequence[UUID], count: int) -> tuple[list[Skipped], dict[str, int]]:
        """Return which of those were left all the same, and how many of which that can't be told any more."""
        found = {facts.id: facts for facts in candidates(self.all_rows.filter(pk__in=fit))}
        if len(fit) == 1:
            return [self._skip(fit[0], found.get(fit[0]))], {}
        as_they_were = [facts for key in fit if (facts := found.get(key)) and not self.action.why_not(facts)]
        if len(as_they_were) > count:  # of those that can be moved again nobody knows which were
            return [], {self.action.fallback_reason: count}
        named = [Skipped(facts.id, facts.state, self.action.fallback_reason) for facts in as_they_were]
        rest = count - len(named)
        return named, {"it changed at that moment": rest} if rest else {}

    def _skip(self, key: UUID, facts: Candidate | None) -> Skipped:
        if facts is None:
            return Skipped(key, None, MISSING)
        return Skipped(key, facts.state, self.action.why_not(facts) or self.action.fallback_reason)

    def _with_ids(self, keys: Sequence[UUID]) -> TaskQuerySet:
        """Those of the rows that have these ids and are still meant when their turn comes."""
        return self.rows.order_by().filter(pk__in=keys)
