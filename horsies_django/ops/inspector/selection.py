"""Selections of tasks, by id or by filter, and actions on them in bounded batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import reduce
from operator import and_
from typing import Any, Final, Self, TypedDict, cast
from uuid import UUID

from django.db.models import Q

from ...core.operations import log_operation
from ...core.option_parsers import parse_duration
from ...db.expressions import NowPlus
from ...models.error_group import FINGERPRINT_LENGTH, is_fingerprint
from ...models.transitions import TaskQuerySet
from ..keyset.criteria import Criteria
from ..keyset.matching import MatchingRows
from ..keyset.scan import KeysetScan
from ..task_criteria import in_error_group, in_queue, in_states, of_task
from ..task_states import ALLOWED, State, parse_states
from . import actions
from .actions import Candidate, TaskAction, candidates

#: The reason for an id without a task.
MISSING: Final = "there is no such task"

#: Maximum number of skipped tasks that a report names; it counts the others.
MAX_NAMED: Final = 1_000


class FilterArguments(TypedDict, total=False):
    """Filters as callers of the inspector pass them; None means no filter.

    ``status`` is one state or several, ``task`` a name or an alias, ``older_than`` the least age (seconds, a timedelta
    or a string such as ``"7d"``), and ``error`` a fingerprint.
    """

    status: State | str | Iterable[State | str] | None
    queue: str | None
    task: str | None
    older_than: timedelta | float | str | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilters:
    """Filters for tasks. None, or an empty set of states, means no filter.

    ``task`` may be an alias of a name. ``error`` is a fingerprint: failed and retrying tasks have that of their last
    attempt.
    """

    states: frozenset[State] = frozenset()
    queue: str | None = None
    task: str | None = None
    older_than: timedelta | None = None
    error: str | None = None

    @classmethod
    def of(
        cls,
        *,
        status: State | str | Iterable[State | str] | None = None,
        queue: str | None = None,
        task: str | None = None,
        older_than: timedelta | float | str | None = None,
        error: str | None = None,
    ) -> Self:
        """Build filters from a caller's arguments. Raises ValueError that names the allowed values."""
        for name, text in (("queue", queue), ("task", task)):
            if text is not None and (not isinstance(text, str) or not text or "\0" in text):
                raise ValueError(f"{name} is {text!r}; allowed: a name.")
        states = frozenset() if status is None else parse_states(status)
        if status is not None and not states:
            raise ValueError(f"status is {status!r}; allowed: one or more of {ALLOWED}.")
        if error is not None and not (isinstance(error, str) and is_fingerprint(error)):
            raise ValueError(f"error is {error!r}; allowed: a fingerprint, {FINGERPRINT_LENGTH} digits from 0-9a-f.")
        return cls(states=states, queue=queue, task=task, older_than=_age(older_than), error=error)

    @property
    def criteria(self) -> Criteria:
        """The criteria of the matching tasks.

        ``older_than`` compares ``sent_at`` although ids contain a time, because callers may choose their own ids.
        """
        parts = [
            in_states(self.states) if self.states else None,
            in_queue(self.queue) if self.queue is not None else None,
            of_task(self.task) if self.task is not None else None,
            in_error_group(self.error) if self.error is not None else None,
        ]
        if self.older_than is not None:
            parts.append(Criteria(Q(sent_at__lte=NowPlus(-self.older_than.total_seconds()))))
        return reduce(and_, (part for part in parts if part is not None), Criteria())


def _age(value: timedelta | float | str | None) -> timedelta | None:
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError:
        raise ValueError(
            f"older_than is {value!r}; allowed: seconds, a timedelta, or a text like 90s, 12h, 7d."
        ) from None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A task that the action skipped, its state (None if there is no such task), and the reason."""

    id: UUID
    state: State | str | None
    why: str

    def __str__(self) -> str:
        return f"{self.id}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How many tasks an action changed and which ones it skipped.

    Attributes:
        action: The name of the action: ``run``, ``cancel``, ``retry``, ``move``, ``delete`` or ``update``.
        done: How many tasks it changed, or would have changed on a dry run.
        left: How many tasks it skipped.
        reasons: The number of skipped tasks by reason.
        skipped: The first ``MAX_NAMED`` skipped tasks, without those that changed concurrently.
        is_dry: Whether it was a dry run.
    """

    action: str
    done: int = 0
    left: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    is_dry: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether no task was skipped."""
        return self.left == 0

    def with_batch(self, done: int, skipped: Iterable[Skipped], unnamed: Mapping[str, int]) -> Self:
        """Return the report with a batch added. ``unnamed`` counts unidentified skipped tasks by reason."""
        more = tuple(skipped)
        return replace(
            self,
            done=self.done + done,
            left=self.left + len(more) + sum(unnamed.values()),
            reasons=dict(Counter(self.reasons) + Counter(task.why for task in more) + Counter(unnamed)),
            skipped=(*self.skipped, *more)[:MAX_NAMED],
        )

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        skipped = [{"id": str(task.id), "state": task.state, "why": task.why} for task in self.skipped]
        return {
            "action": self.action,
            "done": self.done,
            "left": self.left,
            "reasons": dict(self.reasons),
            "skipped": skipped,
            "is_dry": self.is_dry,
        }


@dataclass(frozen=True, slots=True)
class Selection:
    """Tasks to act on: those with the ids, or all that match the filters. Each action returns a :class:`Report`.

    An action runs in batches, each with its own statements, so a later failure does not undo earlier batches. Each of
    the ids is a batch of its own, so that the report covers each one. Matching tasks are changed from the newest to the
    oldest, without those sent after the start.
    """

    #: The tasks that were selected from.
    rows: TaskQuerySet
    filters: TaskFilters = field(default_factory=TaskFilters)
    #: The ids; None selects by the filters.
    ids: tuple[UUID, ...] | None = None

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
            rows, batches = self._batches(action)
            for keys in batches:
                room = None if limit is None else limit - report.done
                fitting, skipped = self._split(action, keys, room)
                unnamed: dict[str, int] = {}
                done = len(fitting)
                if fitting and not dry_run:
                    done = action.act(rows.order_by().filter(pk__in=fitting))  # rows that no longer match drop out
                    more, unnamed = self._explain_missed(action, fitting, len(fitting) - done)
                    skipped += more
                report = report.with_batch(done, skipped, unnamed)
                yield report
                if limit is not None and report.done >= limit:
                    return
        finally:  # log what was done before an error, too
            if not dry_run and (report.done or report.left):
                fields = {**action.log_fields, **self._log_fields}
                log_operation(f"task.{action.name}", report.done, left=report.left or None, **fields)

    def matching(self, action: TaskAction) -> MatchingRows:
        """Return the rows that match now, in the filter's states or else in those the action covers by default.

        Raises ValueError if the action takes none of the filter's states.
        """
        criteria = replace(self.filters, states=self.states(action)).criteria
        return MatchingRows.now(KeysetScan(criteria.filter(self.rows), criteria))

    def states(self, action: TaskAction) -> frozenset[State]:
        """Return the states of the filter that the action takes. Raises ValueError if there is none."""
        states = self.filters.states or action.states_of_all
        if not states & action.states:
            allowed = ", ".join(sorted(action.states))
            raise ValueError(f"status is {', '.join(sorted(self.filters.states))}; {action.name} takes {allowed}.")
        return states & action.states

    @property
    def _log_fields(self) -> Mapping[str, Any]:
        if self.ids is not None:
            return {"ids": self.ids}
        filters = self.filters
        return {
            "all": True,
            "status": sorted(filters.states) or None,
            "queue": filters.queue,
            "task": filters.task,
            "older_than": None if filters.older_than is None else f"{filters.older_than.total_seconds():g}s",
            "error": filters.error,
        }

    def _batches(self, action: TaskAction) -> tuple[TaskQuerySet, Iterable[Sequence[UUID]]]:
        """Return the rows that the action may change, and their ids in batches."""
        if self.ids is not None:
            return self.rows, ([key] for key in self.ids)
        matching = self.matching(action)
        return cast("TaskQuerySet", matching.rows), (keys for keys, _ in matching.batches() if keys)

    def _split(self, action: TaskAction, keys: Sequence[UUID], room: int | None) -> tuple[list[UUID], list[Skipped]]:
        """Return the ids to change, up to the limit, and the tasks to skip before it is reached."""
        by_id = self._candidates(keys)
        fitting: list[UUID] = []
        skipped: list[Skipped] = []
        for key in keys:
            if room is not None and len(fitting) >= room:
                break
            task = by_id.get(key)
            if why := MISSING if task is None else action.why_not(task):
                skipped.append(Skipped(key, None if task is None else task.state, why))
            else:
                fitting.append(key)
        return fitting, skipped

    def _explain_missed(
        self, action: TaskAction, fitting: Sequence[UUID], count: int
    ) -> tuple[list[Skipped], dict[str, int]]:
        """Return the tasks that the action did not change after all, and counts of those that can't be identified."""
        if not count:
            return [], {}
        by_id = self._candidates(fitting)
        if len(fitting) == 1:
            task = by_id.get(fitting[0])
            why = MISSING if task is None else action.why_not(task) or action.fallback_reason
            return [Skipped(fitting[0], None if task is None else task.state, why)], {}
        unchanged = [task for key in fitting if (task := by_id.get(key)) and not action.why_not(task)]
        if len(unchanged) > count:  # a moved task can be moved again, so the unchanged ones can't be told apart
            return [], {action.fallback_reason: count}
        named = [Skipped(task.id, task.state, action.fallback_reason) for task in unchanged]
        rest = count - len(named)
        return named, {"it changed meanwhile": rest} if rest else {}

    def _candidates(self, keys: Sequence[UUID]) -> dict[UUID, Candidate]:
        return {task.id: task for task in candidates(self.rows.filter(pk__in=keys))}
