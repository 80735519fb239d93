"""The filters of the inspector, and the index range that each of them allows to scan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from ...core.option_parsers import parse_duration
from ...core.registry import registry
from ...db.expressions import NowPlus
from ...models.error_group import FINGERPRINT_LENGTH, is_fingerprint
from ...models.filters import in_error_group
from ...models.transitions import TaskQuerySet
from ..keyset import scopes
from ..keyset.scan import KeysetScan
from .task_states import ALLOWED, State, in_states, parse_states, scope_of


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

    def scan(self, rows: TaskQuerySet) -> KeysetScan:
        """Return a scan of the matching rows, by an index where one fits, otherwise by id.

        ``older_than`` compares ``sent_at`` although ids contain a time, because callers may choose their own ids.
        """
        scope = scope_of(self.states) if self.states else scopes.TABLE
        if self.states:
            rows = in_states(rows, self.states)
        if self.queue is not None:
            rows = rows.filter(queue_name=self.queue)
            scope = scope.for_queue(self.queue)
        if self.task is not None:
            rows = rows.filter(task_name__in=registry.names_of(self.task))
        if self.older_than is not None:
            rows = rows.filter(sent_at__lte=NowPlus(-self.older_than.total_seconds()))
        if self.error is not None:
            rows = rows.filter(in_error_group(self.error))
            scope = scopes.of_error_group(self.error)
        return KeysetScan(rows, scope)


def _age(given: timedelta | float | str | None) -> timedelta | None:
    if given is None:
        return None
    try:
        return parse_duration(given)
    except ValueError:
        raise ValueError(
            f"older_than is {given!r}; allowed: seconds, a timedelta, or a text like 90s, 12h, 7d."
        ) from None
