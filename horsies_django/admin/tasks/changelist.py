"""The list of tasks: its tabs, its orders, and what its columns need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_
from typing import Any, ClassVar, Final
from uuid import UUID

from django.db.models import Q, QuerySet
from django.db.models.functions import Left
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.numbers import format_about, format_brief, format_number
from ...core.results import OperationalCode
from ...core.status import TaskStatus
from ...db.now import Now
from ...models import Task, TaskAttempt, Worker
from ...ops.keyset.scan import Page
from ...ops.metrics import Count, count_by_state
from ...ops.metrics.workers import HeldTasks, with_times, worker_status
from ...ops.payload_view.excerpt import excerpt_of, with_short_arguments
from ...ops.running import HOURS, NEAR_LIMIT, UsualRunTime, usual_run_times
from ..links import Links
from ..lists.changelist import KeysetChangeList
from ..lists.list_state import OF_STATE, SortOrder
from ..lists.task_filters import KindFilter, StateFilter
from ..workers_queues.state_text import status_label
from .columns import HELD_STATES, IS_QUEUE_PAUSED

#: Maximum number of characters of an error message that are read.
MAX_MESSAGE: Final = 240


@dataclass(frozen=True, slots=True)
class LastError:
    """An error: its code, the class of its exception and the beginning of its message, each possibly empty."""

    code: str
    exception_class: str = ""
    message: str = ""

    @property
    def label(self) -> str:
        """The exception class without its module; the code before it, unless that says only that it was unhandled."""
        kind = self.exception_class.rpartition(".")[2]
        if kind and self.code == OperationalCode.UNHANDLED_EXCEPTION:
            return kind
        return " ".join(filter(None, (self.code, kind)))


def with_columns(tasks: QuerySet[Any]) -> QuerySet[Any]:
    """Read what the columns need: small arguments, the database's current time as ``seen_at``, the queue's pause."""
    return with_short_arguments(tasks.annotate(seen_at=Now(), is_queue_paused=IS_QUEUE_PAUSED))


def complete_rows(rows: Sequence[Any], links: Links) -> None:
    """Add the links, the latest error and the beginning of the arguments to each row, in one statement."""
    errors = _last_errors(rows, rows[0]._state.db) if rows else {}
    for row in rows:
        row.page_links, row.last_error, row.call = links, errors.get(row.pk), excerpt_of(row)


def complete_held_rows(rows: Sequence[Any], links: Links) -> None:
    """Add what the tabs of held tasks show besides: the usual run times and the workers, in a statement each."""
    if not rows:
        return
    database = rows[0]._state.db
    usual = usual_run_times(database, {row.task_name for row in rows})
    keys = {row.claimed_by_worker_id for row in rows} - {None}
    notes: dict[str | None, SafeString | str] = {}
    if keys and links.can_view(Worker):
        for worker in with_times(Worker.objects.using(database).filter(pk__in=keys)):
            status = worker_status(worker, HeldTasks())
            notes[worker.pk] = "" if status.is_online else status_label(status)
    for row in rows:
        row.comparison = list(_comparison(row, usual.get(row.task_name)))
        row.worker_note = notes.get(row.claimed_by_worker_id, "")


def _last_errors(tasks: Iterable[Task], database: str) -> dict[UUID, LastError]:
    """Return the errors of failed tasks and of tasks that wait for a retry, by id.

    One statement reads the attempts in which they failed, and no traceback. An error without an attempt, such as a
    cancellation, has only a code.
    """
    with_error = [task for task in tasks if task.error_code]
    errors = {task.pk: LastError(task.error_code or "") for task in with_error}
    if attempts := [Q(task=task.pk, attempt=task.attempt) for task in with_error if task.attempt]:
        rows: Any = TaskAttempt.objects.using(database).filter(reduce(or_, attempts)).exclude(error_code="")
        columns = rows.values_list("task_id", "error_code", "exception_class", Left("error_message", MAX_MESSAGE))
        codes = {task.pk: task.error_code for task in with_error}
        # The task may have failed again since, or been cancelled.
        errors |= {key: LastError(code, *texts) for key, code, *texts in columns if code == codes[key]}
    return errors


def _comparison(task: Any, usual: UsualRunTime | None) -> Iterator[SafeString | str]:
    """Yield how the run time of a running task compares with its limit and with its usual one."""
    if task.status != TaskStatus.RUNNING or task.started_at is None:
        return
    seconds = max(0.0, (task.seen_at - task.started_at).total_seconds())
    mark = '<span class="horsies-badge horsies-badge-{}">{}</span>'
    if task.timeout and seconds >= NEAR_LIMIT * task.timeout:
        text = _("over its time limit of %s") if seconds >= task.timeout else _("near its time limit of %s")
        yield format_html(mark, "limit", text % format_brief(task.timeout))
    if usual is None:
        return
    if usual.is_exceeded_by(seconds):
        yield format_html(mark, "slow", _("over p95"))
    title = ngettext(
        "95 % of the %(count)s run that completed in the last %(hours)d hours took at most this long (within 20 %).",
        "95 % of the %(count)s runs that completed in the last %(hours)d hours took at most this long (within 20 %).",
        usual.count,
    )
    title = title.replace("%(count)s", format_number(usual.count)).replace("%(hours)d", str(HOURS))
    yield format_html('<abbr title="{}">p95</abbr> {}', title, format_about(usual.p95))
    yield format_html(  # the browser counts it
        '<progress class="horsies-usual" aria-label="{}" max="{}" value="{}" data-horsies-age="{}"></progress>',
        _("run time as a part of the p95"),
        f"{usual.p95:.3f}",
        f"{seconds:.1f}",
        f"{seconds:.1f}",
    )


class TaskChangeList(KeysetChangeList):
    """Adds the links, the error and the database's current time to each task."""

    state_filter_class = StateFilter
    sums_of_states: ClassVar = frozenset({"pending", "active"})
    rare_states: ClassVar = frozenset({"aggregating", "blocked", "claimed", "awaiting"})

    def state_counts(self) -> Mapping[str, Count]:
        """Return the number of tasks in each state; nothing if a filter or the search narrows the list.

        Of the filters, only the one that leaves out internal steps is part of the count.
        """
        kinds = next((spec for spec in self.filter_specs if isinstance(spec, KindFilter)), None)
        if self.query or any(spec is not kinds for spec in self.active_filters):
            return {}
        only = None if kinds is None or kinds.selected == "all" else kinds.criteria.rows
        counts = count_by_state(self.root_queryset.db, only)
        not_due = (counts[state] for state in ("scheduled", "aggregating", "retrying", "awaiting"))
        return {**counts, "pending": sum(not_due, counts["pending"])}  # the list has every task of the status

    @property
    def state(self) -> str | None:
        """The selected state."""
        return self.state_filter.selected if self.state_filter is not None else None

    @property
    def is_live(self) -> bool:
        """Whether the rows are refreshed."""
        return self.state in HELD_STATES

    @cached_property
    def sort_orders(self) -> list[SortOrder]:
        """The order of the state, if it has one, and those by id. Of running tasks, the longest running come first."""
        orders = super().sort_orders
        if self.state not in OF_STATE:
            return orders
        order = OF_STATE[self.state]
        return [order, *orders] if self.state == "running" else [*orders, order]

    @cached_property
    def page(self) -> Page:
        """The page's rows with what its columns need."""
        page = self.load(replace(self.scan, rows=with_columns(self.queryset)))
        links = Links(self.model_admin.admin_site, self.request)
        complete_rows(page.rows, links)
        if self.is_live:
            complete_held_rows(page.rows, links)
        return page
