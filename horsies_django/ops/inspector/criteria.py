"""Criteria of tasks, by state, queue, name, age and error: what the admin, the inspector and the commands filter by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from operator import and_, or_
from typing import Final, Self, TypedDict

from django.db.models import Q

from ...core.option_parsers import parse_duration
from ...core.registry import registry
from ...core.status import TaskStatus
from ...db.expressions import NowPlus
from ...db.now import Now
from ...models import filters
from ...models.claim.query import not_past_deadline
from ...models.error_group import FINGERPRINT_LENGTH, is_fingerprint
from ..keyset import scopes
from ..keyset.criteria import Criteria
from ..keyset.scopes import ScanScope
from .task_states import ALLOWED, State, parse_states

_PENDING: Final = Q(status=TaskStatus.PENDING)
_IS_READY: Final = _PENDING & Q(enqueued_at__lte=Now())
#: What the inspector calls pending: due tasks, also those that are blocked or overdue.
READY: Final = Criteria(_IS_READY, scopes.READY)

#: The statuses, the kinds of pending tasks, and the tasks that workers hold.
BY_STATE: Final[Mapping[str, Criteria]] = {
    "due": Criteria(_IS_READY & not_past_deadline() & Q(blocked=False), scopes.DUE),
    "blocked": Criteria(_PENDING & not_past_deadline() & Q(blocked=True), scopes.BLOCKED),
    "overdue": Criteria(_PENDING & Q(good_until__lte=Now()), scopes.OVERDUE),
    "scheduled": Criteria(_PENDING & filters.IS_SCHEDULED, scopes.DEFERRED),
    "aggregating": Criteria(_PENDING & filters.IS_AGGREGATING, scopes.DEFERRED),
    "retrying": Criteria(_PENDING & filters.IS_RETRYING, scopes.DEFERRED),
    "active": Criteria(filters.IS_HELD, scopes.HELD),
    **{status.lower(): Criteria(Q(status=status), scopes.of_status(status)) for status in TaskStatus.values},
}


def in_states(states: Iterable[State]) -> Criteria:
    """Match the tasks in one of these states of the inspector."""
    each = [READY if state is State.PENDING else BY_STATE[state] for state in sorted(states)]
    return Criteria(reduce(or_, (criteria.rows for criteria in each)), _union({criteria.scope for criteria in each}))


def in_queue(name: str) -> Criteria:
    """Match the tasks in a queue."""
    return Criteria(Q(queue_name=name), queue=name)


def of_task(name: str) -> Criteria:
    """Match the calls of a task, also by the old names of a renamed one."""
    return Criteria(Q(task_name__in=registry.names_of(name)))


def in_error_group(fingerprint: str) -> Criteria:
    """Match the failed and retrying tasks whose last attempt failed with this error."""
    return Criteria(filters.in_error_group(fingerprint), scopes.of_error_group(fingerprint))


def _union(parts: set[ScanScope]) -> ScanScope:
    """Return the scope that contains all of these."""
    if len(parts) == 1:
        return parts.pop()
    if all(scope.ranges for scope in parts):
        return ScanScope(ranges=tuple(dict.fromkeys(index_range for scope in parts for index_range in scope.ranges)))
    if all(scope.partitions for scope in parts):
        return ScanScope(partitions=tuple(partition for scope in parts for partition in scope.partitions))
    return scopes.TABLE


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
