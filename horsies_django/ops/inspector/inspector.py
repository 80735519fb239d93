"""The inspector: what is there, and what can be done to it, from Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from typing import Any, Final
from uuid import UUID

from ...core.backends import horsies_backend
from ...core.compat import DEFAULT_TASK_BACKEND_ALIAS
from ...core.ids import as_uuid
from ...core.operations import log_operation
from ...enqueue.handle import TaskHandle
from ...models import Task
from ...models.transitions import TaskQuerySet
from .detail import TaskDetail, task_detail
from .filters import TaskFilters
from .report import Report, Skipped
from .selection import MISSING, ByIds, Matching
from .send_by_name import registered_task, send_by_name, update_action
from .summary import TaskSummary, task_summaries, with_summary_columns
from .task_states import State

#: Tasks of one page (A3-100).
PAGE: Final = 30


def tasks(backend: str | None = None) -> Inspector:
    """Return the inspector of the tasks of one backend, or of all in the database of the default one.

    Raises ValueError for an alias that is none of ours.

    >>> tasks().matching(status="failed", queue="emails").retry().done  # doctest: +SKIP
    12
    """
    database = horsies_backend(backend or DEFAULT_TASK_BACKEND_ALIAS).config.database
    return Inspector(database, backend)


@dataclass(frozen=True, slots=True)
class Inspector:
    """Lists tasks, shows them, acts on them and sends them. Every change is one that the admin makes, too.

    An id is a UUID or its text; ids that are none raise ValueError before anything is done.
    """

    database: str
    backend: str | None = None

    # To look at.

    def list(
        self,
        *,
        status: State | str | Iterable[State | str] | None = None,
        queue: str | None = None,
        task: str | None = None,
        older_than: timedelta | float | str | None = None,
        limit: int = PAGE,
        after: UUID | str | None = None,
    ) -> list[TaskSummary]:
        """Return tasks, the newest first; ``after`` the one with this id, to have the next page (A3-100).

        ``older_than`` is how long ago they were sent: seconds, a timedelta or a text such as ``"7d"``. Raises
        ValueError, saying what is allowed.
        """
        which = TaskFilters.of(status=status, queue=queue, task=task, older_than=older_than)
        return [*next(self.pages(which, size=_count("limit", limit), after=after), [])]

    def pages(
        self, which: TaskFilters, *, size: int = PAGE, after: UUID | str | None = None
    ) -> Iterator[Sequence[TaskSummary]]:
        """Yield page after page, as long as there is something on them."""
        scan = which.scan(self.rows)
        scan = replace(scan, rows=with_summary_columns(scan.rows))  # type: ignore[arg-type]  # of tasks, as was given
        before = None if after is None else as_uuid(after, "after")
        while rows := scan.first(size, before):
            yield task_summaries(rows)
            if len(rows) < size:
                return
            before = rows[-1].pk

    def show(self, id: UUID | str) -> TaskDetail | None:
        """Return all that is known of a task, its values masked; None if there is no such task."""
        return task_detail(self.rows.filter(pk=as_uuid(id)))

    # To act on.

    def matching(
        self,
        *,
        status: State | str | Iterable[State | str] | None = None,
        queue: str | None = None,
        task: str | None = None,
        older_than: timedelta | float | str | None = None,
    ) -> Matching:
        """Return all tasks of some kind, to act on: ``matching(status="retrying").run()``. Raises ValueError."""
        return Matching(self.rows, TaskFilters.of(status=status, queue=queue, task=task, older_than=older_than))

    def chosen(self, *ids: UUID | str | Iterable[UUID | str]) -> ByIds:
        """Return these tasks, to act on. Raises ValueError for an id that is none."""
        every = chain.from_iterable([one] if isinstance(one, UUID | str) else one for one in ids)
        return ByIds(self.rows, tuple(dict.fromkeys(as_uuid(one) for one in every)))

    def run(self, *ids: UUID | str | Iterable[UUID | str]) -> Report:
        """See :meth:`.chosen.Chosen.run`."""
        return self.chosen(*ids).run()

    def cancel(self, *ids: UUID | str | Iterable[UUID | str], include_running: bool = False) -> Report:
        """See :meth:`.chosen.Chosen.cancel`."""
        return self.chosen(*ids).cancel(include_running=include_running)

    def retry(self, *ids: UUID | str | Iterable[UUID | str]) -> Report:
        """See :meth:`.chosen.Chosen.retry`."""
        return self.chosen(*ids).retry()

    def move(
        self, *ids: UUID | str | Iterable[UUID | str], queue: str | None = None, priority: int | None = None
    ) -> Report:
        """See :meth:`.chosen.Chosen.move`."""
        return self.chosen(*ids).move(queue=queue, priority=priority)

    def delete(self, *ids: UUID | str | Iterable[UUID | str]) -> Report:
        """See :meth:`.chosen.Chosen.delete`."""
        return self.chosen(*ids).delete()

    def update(self, id: UUID | str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Report:
        """Give a scheduled task other arguments (A3-101); its keys stay those of the call that was sent.

        Raises ValueError if there is no task at its path any more, and what ``send()`` raises for arguments.
        """
        chosen = self.chosen(id)
        name, backend = self.rows.filter(pk__in=chosen.ids).values_list("task_name", "backend").first() or ("", "")
        if not name:
            return Report(verb="update").with_batch(0, [Skipped(chosen.ids[0], None, MISSING)], {})
        return chosen.apply(update_action(registered_task(name).with_options(backend=backend), args, kwargs or {}))

    # To send.

    def enqueue(
        self, path: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> TaskHandle[Any]:
        """Send a call of the task of a name, with the options that ``with_options()`` takes.

        Only a task of an installed app is sent; nothing else that has a path is called. Raises ValueError if there is
        none, and what ``with_options()`` and ``send()`` raise.
        """
        if self.backend is not None:
            options.setdefault("backend", self.backend)
        handle = send_by_name(path, args, kwargs or {}, options)
        log_operation("task.enqueue", 0 if handle.replayed else 1, task=path, ids=[handle.id])
        return handle

    @property
    def rows(self) -> TaskQuerySet:
        """The tasks that it is about."""
        rows: TaskQuerySet = Task.objects.using(self.database)
        return rows if self.backend is None else rows.filter(backend=self.backend)


def _count(name: str, given: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ValueError(f"{name} is {given!r}; allowed: a whole number from 1 on.")
    return given
