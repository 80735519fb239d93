"""The options of a registered task as they are in force: its own, else the backend's defaults, in words."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from ..core.grouping_policy import Gather
from ..core.numbers import fill_numbers, format_duration
from ..core.registry import registry, source_location
from ..core.retention import LONGEST, retention_of
from ..core.status import TaskStatus
from ..core.unique import Unique
from ..enqueue.call_builder import CallBuilder
from ..enqueue.task import HorsiesTask
from ..models import Task
from .diagnosis.retries import describe_retry_policy
from .diagnosis.waiting import backend_options


class OptionInForce(NamedTuple):
    """An option of a task: its label and its value as text."""

    label: str
    value: str


def options_in_force(task_name: str) -> list[OptionInForce] | None:
    """Return the options with which a call of this task is sent now; None if this process has no such task."""
    task = registry.tasks.get(task_name)
    if not isinstance(task, HorsiesTask):
        return None
    return [OptionInForce(label, value) for label, value in _options(task) if value]


def _options(task: HorsiesTask[..., Any]) -> Iterator[tuple[str, str]]:
    columns = CallBuilder.of(task, backend_options(task.backend)).columns
    sent = ("task_name", "backend", "max_retries", "retry_policy", "timeout")
    row = Task(**{name: columns[name] for name in sent})
    yield _("Function"), source_location(task.func)
    yield _("Also named"), ", ".join(sorted(task.aliases))
    yield _("Queue"), task.queue_name
    yield _("Backend"), task.backend
    yield _("Priority"), str(task.priority)
    yield _("Runs as"), _("coroutine") if inspect.iscoroutinefunction(task.func) else _("function in a thread")
    yield _("Attempts"), describe_retry_policy(row)
    yield _("Error codes"), ", ".join(f"{kind.__qualname__} → {code}" for kind, code in task.exception_mapper.items())
    yield _("Time limit"), _("none") if row.timeout is None else format_duration(row.timeout)
    yield _("Transaction"), _("one for each attempt and its result") if task.atomic else ""
    yield _("Retention"), describe_retention(columns["retention"], columns["retention_by_state"])
    yield _("Unique"), _describe_unique(task.unique) if task.unique else ""
    yield _("Limits"), _describe_limits(task)
    yield _("Grouping"), _describe_grouping(task.gather) if task.gather else ""
    yield _("Hidden values"), _describe_sensitive(task)


def describe_retention(stored: timedelta | None, by_state: object) -> str:
    """Return how long tasks are kept after each outcome; empty if the row leaves that to the queue and the backend."""
    return "; ".join(
        f"{TaskStatus[state.upper()].label}: {_('forever') if kept >= LONGEST else format_duration(kept)}"
        for state, kept in retention_of(stored, by_state).items()
    )


def _describe_unique(unique: Unique) -> str:
    key = _name_of(unique.key) if unique.key is not None else ", ".join(unique.by)
    parts = [_("key: %s") % key, _("if it is taken: %s") % unique.on_conflict]
    if unique.until is not None:
        parts.append(_("until: %s") % str(unique.until))
    for label, duration in (
        (_("period"), unique.period),
        (_("debounce"), unique.wait),
        (_("at most"), unique.max_wait),
    ):
        if isinstance(duration, timedelta):
            parts.append(f"{label}: {format_duration(duration)}")
    return "; ".join(parts)


def _describe_limits(task: HorsiesTask[..., Any]) -> str:
    parts = []
    if task.one_at_a_time is not None:
        parts.append(_("one at a time about each row"))
    if task.max_concurrency is not None:
        parts.append(fill_numbers(_("%d at a time"), task.max_concurrency))
    if task.rate_limit is not None:
        parts.append(_("rate %s") % task.rate_limit)
    if parts and task.concurrency_key is not None:
        parts.append(_("for each %s") % _name_of(task.concurrency_key))
    if parts and task.concurrency_scope is not None:
        parts.append(_("shared as %s") % task.concurrency_scope)
    return ", ".join(parts)


def _describe_grouping(gather: Gather) -> str:
    parts = [_("key: %s") % _name_of(gather.by), fill_numbers(_("at most %d calls"), gather.max_size)]
    if gather.max_delay_seconds is not None:
        parts.append(_("due %s after the first call") % format_duration(gather.max_delay_seconds))
    if gather.quiet_seconds is not None:
        parts.append(_("or %s after the last") % format_duration(gather.quiet_seconds))
    return ", ".join(parts)


def _describe_sensitive(task: HorsiesTask[..., Any]) -> str:
    return _name_of(task.sensitive) if callable(task.sensitive) else ", ".join(sorted(task.sensitive))


def _name_of(value: Any) -> str:
    """Return a format string, or the name of a function."""
    return value if isinstance(value, str) else f"{getattr(value, '__qualname__', type(value).__qualname__)}()"
