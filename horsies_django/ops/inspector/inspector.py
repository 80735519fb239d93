"""The inspector: list tasks, show them, act on them and send them from Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final, Unpack, cast
from uuid import UUID

from ...core.backends import config_of, horsies_backend
from ...core.compat import DEFAULT_TASK_BACKEND_ALIAS
from ...core.exceptions import NotRegistered
from ...core.ids import parse_uuid
from ...core.mask import mask_of
from ...core.operations import log_operation
from ...core.registry import registry
from ...enqueue import output
from ...enqueue.call_builder import CallBuilder
from ...enqueue.handle import TaskHandle
from ...enqueue.output import OutputChunk
from ...enqueue.task import HorsiesTask
from ...models import Task
from ...models.operator_actions import ENGINE_TASK_PREFIX
from ...models.transitions import TaskQuerySet
from ..keyset.scan import KeysetScan
from ..task_states import State
from .actions import TaskAction
from .selection import MISSING, FilterArguments, Report, Selection, Skipped, TaskFilters
from .task_values import TaskDetail, TaskSummary, task_detail, task_summaries, with_summary_columns

#: Default number of tasks on a page.
PAGE: Final = 30


def tasks(backend: str | None = None) -> Inspector:
    """Return an inspector for the tasks of one backend, or for all tasks in the default backend's database.

    Raises ValueError if the alias is not a HorsiesBackend.

    >>> tasks().matching(status="failed", queue="emails").retry().done  # doctest: +SKIP
    12
    """
    database = horsies_backend(backend or DEFAULT_TASK_BACKEND_ALIAS).config.database
    return Inspector(database, backend)


@dataclass(frozen=True, slots=True)
class Inspector:
    """Lists tasks, shows them, acts on them and sends them. The admin uses the same updates.

    An id is a UUID or its string; an invalid id raises ValueError before anything changes.
    """

    database: str
    backend: str | None = None

    # Reading.

    def list(
        self, *, limit: int = PAGE, after: UUID | str | None = None, **filters: Unpack[FilterArguments]
    ) -> list[TaskSummary]:
        """Return a page of tasks, the newest first. Pass the last id of a page as ``after`` for the next one.

        Raises ValueError that names the allowed values.
        """
        return [*next(self.pages(TaskFilters.of(**filters), size=_count("limit", limit), after=after), [])]

    def pages(
        self, filters: TaskFilters, *, size: int = PAGE, after: UUID | str | None = None
    ) -> Iterator[Sequence[TaskSummary]]:
        """Yield pages until there are no more tasks."""
        criteria = filters.criteria
        scan = KeysetScan(with_summary_columns(cast("TaskQuerySet", criteria.filter(self.rows))), criteria)
        before = None if after is None else parse_uuid(after, "after")
        while rows := scan.first(size, before):
            yield task_summaries(rows)
            if len(rows) < size:
                return
            before = rows[-1].pk

    def show(self, id: UUID | str) -> TaskDetail | None:
        """Return everything known about a task, with its values masked; None if there is no such task."""
        return task_detail(self.rows.filter(pk=parse_uuid(id)))

    def output(self, id: UUID | str, *, after: int = 0, follow: bool = False) -> Iterator[OutputChunk] | None:
        """Return what a task has written and logged, masked; None if there is no such task.

        With ``follow``, the iterator waits for more until the task has ended. Raises ValueError for a bad ``after``.
        """
        key = parse_uuid(id)
        if (name := self.rows.filter(pk=key).values_list("task_name", flat=True).first()) is None:
            return None
        mask, chunks = mask_of(name), (output.follow if follow else output.read)(self.database, key, after)
        return (output.masked(chunk, mask) for chunk in chunks)

    # Acting.

    def matching(self, **filters: Unpack[FilterArguments]) -> Selection:
        """Select all tasks that match, as in ``matching(status="retrying").run()``. Raises ValueError."""
        return Selection(self.rows, TaskFilters.of(**filters))

    def with_ids(self, *ids: UUID | str | Iterable[UUID | str]) -> Selection:
        """Select tasks by their ids. Raises ValueError for an invalid id."""
        every = chain.from_iterable([each] if isinstance(each, UUID | str) else each for each in ids)
        return Selection(self.rows, ids=tuple(dict.fromkeys(map(parse_uuid, every))))

    def run(self, *ids: UUID | str | Iterable[UUID | str]) -> Report:
        """See :meth:`.selection.Selection.run`."""
        return self.with_ids(*ids).run()

    def cancel(self, *ids: UUID | str | Iterable[UUID | str], include_running: bool = False) -> Report:
        """See :meth:`.selection.Selection.cancel`."""
        return self.with_ids(*ids).cancel(include_running=include_running)

    def retry(self, *ids: UUID | str | Iterable[UUID | str]) -> Report:
        """See :meth:`.selection.Selection.retry`."""
        return self.with_ids(*ids).retry()

    def move(
        self, *ids: UUID | str | Iterable[UUID | str], queue: str | None = None, priority: int | None = None
    ) -> Report:
        """See :meth:`.selection.Selection.move`."""
        return self.with_ids(*ids).move(queue=queue, priority=priority)

    def delete(self, *ids: UUID | str | Iterable[UUID | str]) -> Report:
        """See :meth:`.selection.Selection.delete`."""
        return self.with_ids(*ids).delete()

    def update(self, id: UUID | str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Report:
        """Replace the arguments of a scheduled task. Its unique key and limit key stay as they were sent.

        Raises ValueError if its name is no longer registered, and whatever ``send()`` raises for invalid arguments.
        """
        key = parse_uuid(id)
        name, backend = self.rows.filter(pk=key).values_list("task_name", "backend").first() or ("", "")
        if not name:
            return Report(action="update").with_batch(0, [Skipped(key, None, MISSING)], {})
        return self.with_ids(key).apply(
            update_action(registered_task(name).with_options(backend=backend), args, kwargs or {})
        )

    # Sending.

    def enqueue(
        self, path: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> TaskHandle[Any]:
        """Send a task by its registered name, with the options of ``with_options()``. Return its handle.

        Only registered tasks are sent; no module is imported. Raises ValueError for an unknown name, and whatever
        ``with_options()`` and ``send()`` raise.
        """
        if self.backend is not None:
            options.setdefault("backend", self.backend)
        task = registered_task(path)
        handle = (task.with_options(**options) if options else task).send(*args, **(kwargs or {}))
        log_operation("task.enqueue", 0 if handle.replayed else 1, task=path, ids=[handle.id])
        return handle

    @property
    def rows(self) -> TaskQuerySet:
        """All tasks of the inspector's database, or of its backend."""
        rows: TaskQuerySet = Task.objects.using(self.database)
        return rows if self.backend is None else rows.filter(backend=self.backend)


def update_action(task: HorsiesTask[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskAction:
    """Return the action that replaces the arguments of scheduled calls of a task.

    Raises TypeError or ValueError that names the parameter if the arguments don't fit.
    """
    options = config_of(task.backend)
    arguments = CallBuilder.of(task, options).arguments(args, kwargs)
    is_typed = options.serializer == "rich"
    act = partial(TaskQuerySet.rewrite, args=arguments.args, kwargs=arguments.kwargs, typed_payload=is_typed)
    return TaskAction(
        name="update",
        states=frozenset({State.SCHEDULED}),
        act=act,
        fallback_reason="its arguments come from its workflow, or from calls that it gathers",
    )


def registered_task(path: str) -> HorsiesTask[..., Any]:
    """Return the registered task with this name. Raises ValueError if there is none. Imports nothing."""
    if not isinstance(path, str):
        raise ValueError(f"There is no task at {path!r}; allowed: the name of a registered task.")
    try:
        task = registry.find_task(path)
    except NotRegistered as error:
        raise ValueError(f"There is no task at {path!r}: {error}") from error
    if path.startswith(ENGINE_TASK_PREFIX):
        raise ValueError(f"There is no task at {path!r}; allowed: a task of the project.")
    if not isinstance(task, HorsiesTask):
        raise ValueError(f"The task at {path!r} is of another kind of backend; allowed: one of a HorsiesBackend.")
    return task


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; allowed: a whole number from 1 on.")
    return value
