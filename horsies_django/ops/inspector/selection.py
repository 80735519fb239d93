"""Selections of tasks, by id or by filter, and actions on them in bounded batches."""

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
from .candidates import Candidate, candidates
from .filters import TaskFilters
from .report import Report, Skipped

#: The reason for an id without a task.
MISSING: Final = "there is no such task"


class Selection(ABC):
    """Tasks to act on. Each action returns a :class:`Report` and takes ``dry_run``.

    An action runs in batches, each with its own statements, so a later failure does not undo earlier batches.
    """

    #: The tasks that were selected from.
    rows: TaskQuerySet

    def run(self, *, dry_run: bool = False) -> Report:
        """Make scheduled, aggregating and retrying tasks due now."""
        return self.apply(actions.RUN, dry_run=dry_run)

    def cancel(self, *, include_running: bool = False, dry_run: bool = False) -> Report:
        """Cancel tasks that have not started; with ``include_running`` also ask running ones to stop."""
        return self.apply(actions.CANCEL_RUNNING if include_running else actions.CANCEL, dry_run=dry_run)

    def retry(self, *, dry_run: bool = False) -> Report:
        """Run failed, cancelled and expired tasks again, with all their retries."""
        return self.apply(actions.RETRY, dry_run=dry_run)

    def move(self, *, queue: str | None = None, priority: int | None = None, dry_run: bool = False) -> Report:
        """Change the queue, the priority or both of pending tasks. Raises ValueError for invalid values."""
        return self.apply(actions.move_action(queue, priority), dry_run=dry_run)

    def delete(self, *, dry_run: bool = False) -> Report:
        """Delete ended tasks. Pending ones are deleted only if given by id or if the filter names their state.

        Skips tasks that a worker holds or that a workflow waits for.
        """
        return self.apply(actions.DELETE, dry_run=dry_run)

    def apply(self, action: TaskAction, *, dry_run: bool = False, limit: int | None = None) -> Report:
        """Apply an action to the selected tasks, to at most ``limit`` of them."""
        report = Report(action=action.name, is_dry=dry_run)
        for latest in self.apply_in_batches(action, dry_run=dry_run, limit=limit):
            report = latest
        return report

    def apply_in_batches(
        self, action: TaskAction, *, dry_run: bool = False, limit: int | None = None
    ) -> Iterator[Report]:
        """Apply an action batch by batch, and yield the report so far after each. Log the final report."""
        report = Report(action=action.name, is_dry=dry_run)
        try:
            for rows, keys in self.batches(action):
                room = None if limit is None else limit - report.done
                step = _ActionBatch(action, self.rows, rows, keys, room)
                report = step.preview(report) if dry_run else step.apply(report)
                yield report
                if limit is not None and report.done >= limit:
                    return
        finally:  # log what was done before an error, too
            if not dry_run and (report.done or report.left):
                log_operation(
                    f"task.{action.name}", report.done, left=report.left or None, **action.log_fields, **self.log_fields
                )

    @property
    @abstractmethod
    def log_fields(self) -> Mapping[str, Any]:
        """Fields that identify the selection in the log."""

    @abstractmethod
    def batches(self, action: TaskAction) -> Iterator[tuple[TaskQuerySet, Sequence[UUID]]]:
        """Yield the rows that the action may change, with the ids of the next batch."""


@dataclass(frozen=True, slots=True)
class ByIds(Selection):
    """Tasks given by id. Each is a batch of its own, so that the report covers each one."""

    rows: TaskQuerySet
    ids: tuple[UUID, ...]

    @property
    def log_fields(self) -> Mapping[str, Any]:
        """The ids."""
        return {"ids": self.ids}

    def batches(self, action: TaskAction) -> Iterator[tuple[TaskQuerySet, Sequence[UUID]]]:
        """Yield each id as a batch."""
        for key in self.ids:
            yield self.rows, [key]


@dataclass(frozen=True, slots=True)
class Matching(Selection):
    """All tasks that match filters, from the newest to the oldest. Tasks sent after the start are not included."""

    rows: TaskQuerySet
    filters: TaskFilters

    @property
    def log_fields(self) -> Mapping[str, Any]:
        """The filters, as log fields."""
        filters = self.filters
        age = None if filters.older_than is None else f"{filters.older_than.total_seconds():g}s"
        states = sorted(filters.states) or None
        return {
            "all": True,
            "status": states,
            "queue": filters.queue,
            "task": filters.task,
            "older_than": age,
            "error": filters.error,
        }

    def batches(self, action: TaskAction) -> Iterator[tuple[TaskQuerySet, Sequence[UUID]]]:
        """Yield batches of a few hundred ids, in the filter's states or else in those the action covers by default.

        Raises ValueError if the action takes none of the filter's states.
        """
        filters = narrow_to_action(self.filters, action)
        edge = upper_bound(self.rows)
        scan = filters.scan(self.rows).sent_until(edge.asked_at)
        rows = cast("TaskQuerySet", scan.rows)
        for batch, _ in scan.id_batches(edge.upper):
            if batch:
                yield rows, batch


def narrow_to_action(filters: TaskFilters, action: TaskAction) -> TaskFilters:
    """Return the filters limited to the states that the action takes. Raises ValueError if none is left."""
    states = filters.states or action.states_of_all
    if not states & action.states:
        allowed = ", ".join(sorted(action.states))
        raise ValueError(f"status is {', '.join(sorted(filters.states))}; {action.name} takes {allowed}.")
    return replace(filters, states=states & action.states)


@dataclass(frozen=True, slots=True)
class _ActionBatch:
    """One batch: it is split into tasks to change and tasks to skip, then changed with one call."""

    action: TaskAction
    all_rows: TaskQuerySet
    rows: TaskQuerySet
    keys: Sequence[UUID]
    room: int | None

    def preview(self, report: Report) -> Report:
        """Return the report with what the action would do."""
        fit, left = self._split()
        return report.with_batch(len(fit), left, {})

    def apply(self, report: Report) -> Report:
        """Apply the action, and return the report with what it did."""
        fit, left = self._split()
        done = self.action.act(self._with_ids(fit)) if fit else 0
        more, unnamed = self._explain_missed(fit, len(fit) - done) if done < len(fit) else ([], {})
        return report.with_batch(done, [*left, *more], unnamed)

    def _split(self) -> tuple[list[UUID], list[Skipped]]:
        """Return the ids to change, up to the limit, and the tasks to skip before it is reached."""
        found = {task.id: task for task in candidates(self.all_rows.filter(pk__in=self.keys))}
        fit: list[UUID] = []
        left: list[Skipped] = []
        for key in self.keys:
            if self.room is not None and len(fit) >= self.room:
                break
            task = found.get(key)
            if task is None:
                left.append(Skipped(key, None, MISSING))
            elif why := self.action.why_not(task):
                left.append(Skipped(key, task.state, why))
            else:
                fit.append(key)
        return fit, left

    def _explain_missed(self, fit: Sequence[UUID], count: int) -> tuple[list[Skipped], dict[str, int]]:
        """Return the tasks that the action did not change after all, and counts of those that can't be identified."""
        found = {task.id: task for task in candidates(self.all_rows.filter(pk__in=fit))}
        if len(fit) == 1:
            return [self._skip(fit[0], found.get(fit[0]))], {}
        unchanged = [task for key in fit if (task := found.get(key)) and not self.action.why_not(task)]
        if len(unchanged) > count:  # a moved task can be moved again, so the unchanged ones can't be told apart
            return [], {self.action.fallback_reason: count}
        named = [Skipped(task.id, task.state, self.action.fallback_reason) for task in unchanged]
        rest = count - len(named)
        return named, {"it changed meanwhile": rest} if rest else {}

    def _skip(self, key: UUID, task: Candidate | None) -> Skipped:
        if task is None:
            return Skipped(key, None, MISSING)
        return Skipped(key, task.state, self.action.why_not(task) or self.action.fallback_reason)

    def _with_ids(self, keys: Sequence[UUID]) -> TaskQuerySet:
        """Return the selected rows with these ids; rows that no longer match drop out."""
        return self.rows.order_by().filter(pk__in=keys)
