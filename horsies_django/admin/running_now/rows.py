"""The rows of the page: held tasks with their links, their progress and their run time against the usual one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.durations import format_about, format_brief
from ...core.numbers import format_number
from ...models import Task, Worker
from ...ops.payload_view.excerpt import excerpt_of
from ...ops.running import HOURS, UsualRunTime, is_near_limit, is_slow, is_started
from ..ages import age
from ..formatting import progress_bar
from ..links import Links
from ..workers_queues.state_text import STATE_TIMES, is_online, worker_state


@dataclass(frozen=True, slots=True)
class HeldRow:
    """One held task on the page. ``seconds`` is since its start, or since its claim if it has not started."""

    task: Any
    name: SafeString | str
    arguments: str
    queue: SafeString | str
    worker: SafeString | str
    worker_note: SafeString | str
    attempt: str
    progress: SafeString | str
    seconds: SafeString | str
    bar: SafeString | str
    usual: SafeString | str
    marks: tuple[tuple[str, str], ...]
    cancel_url: str | None


def held_rows(
    tasks: list[Any], usual: Mapping[str, UsualRunTime], links: Links, cancel_urls: Mapping[Any, str]
) -> tuple[list[HeldRow], list[HeldRow]]:
    """Return the rows of the tasks that have started and of those that have not. Takes one statement."""
    workers = _workers(tasks, links)
    started: list[HeldRow] = []
    waiting: list[HeldRow] = []
    for task in tasks:
        row = _row(task, usual.get(task.task_name), workers.get(task.claimed_by_worker_id), links, cancel_urls)
        (started if is_started(task) else waiting).append(row)
    return started, waiting


def _workers(tasks: list[Any], links: Links) -> dict[str, Any]:
    """Return the rows of the workers that hold these tasks, for users who may view workers."""
    keys = {task.claimed_by_worker_id for task in tasks} - {None}
    if not keys or not links.can_view(Worker):
        return {}
    rows = Worker.objects.using(tasks[0]._state.db).filter(pk__in=keys)
    return {worker.pk: worker for worker in rows.annotate(**STATE_TIMES)}


def _row(task: Any, usual: UsualRunTime | None, worker: Any, links: Links, cancel_urls: Mapping[Any, str]) -> HeldRow:
    began, began_in = (task.started_at, task.runs_in) if is_started(task) else (task.claimed_at, task.claimed_in)
    seconds = max(0.0, -began_in) if began_in is not None else None
    runs = seconds if is_started(task) else None
    return HeldRow(
        task=task,
        name=links.to(Task, task.pk, _wrapping(task.task_name)),
        arguments=excerpt_of(task),
        queue=task.queue_name,
        worker=_worker_link(task, worker, links),
        worker_note="" if worker is None or is_online(worker) else worker_state(worker),
        attempt=f"{task.attempt}/{max(task.attempt, task.max_retries + 1)}",
        progress=progress_bar(task.progress),
        seconds="-" if seconds is None else age(seconds, began, "full"),
        bar=_bar(runs, usual),
        usual="" if runs is None else _usual_text(usual),
        marks=tuple(_marks(task, runs, usual)),
        cancel_url=cancel_urls.get(task.pk),
    )


def _wrapping(name: str) -> SafeString:
    module, dot, last = name.rpartition(".")
    return format_html('<span class="horsies-module">{}{}</span><wbr>{}', module, dot, last)


def _worker_link(task: Any, worker: Any, links: Links) -> SafeString | str:
    key = task.claimed_by_worker_id
    if not key:
        return "-"
    name, _dash, number = key.rpartition("-")
    short = f"{name}-{number[:8]}" if name else key
    return format_html('<span title="{}">{}</span>', key, short if worker is None else links.to(Worker, key, short))


def _bar(seconds: float | None, usual: UsualRunTime | None) -> SafeString | str:
    """Return the run time as a part of the usual one; the browser counts it."""
    if seconds is None or usual is None:
        return ""
    return format_html(
        '<progress class="horsies-usual" aria-label="{}" max="{}" value="{}" data-horsies-age="{}"></progress>',
        _("run time as a part of the p95"),
        f"{usual.p95:.3f}",
        f"{seconds:.1f}",
        f"{seconds:.1f}",
    )


def _usual_text(usual: UsualRunTime | None) -> SafeString | str:
    if usual is None:
        return ""
    title = ngettext(
        "95 % of the %(count)s run that completed in the last %(hours)d hours took at most this long (within 20 %).",
        "95 % of the %(count)s runs that completed in the last %(hours)d hours took at most this long (within 20 %).",
        usual.count,
    )
    return format_html('<abbr title="{}">p95</abbr> {}', _fill(title, usual), format_about(usual.p95))


def _fill(text: str, usual: UsualRunTime) -> str:
    return text.replace("%(count)s", format_number(usual.count)).replace("%(hours)d", str(HOURS))


def _marks(task: Any, seconds: float | None, usual: UsualRunTime | None) -> list[tuple[str, str]]:
    """Return the marks of a running task, each with a name for the style sheet."""
    marks: list[tuple[str, str]] = []
    if seconds is None:
        return marks
    if is_slow(seconds, usual):
        marks.append(("slow", _("over p95")))
    if is_near_limit(seconds, task.timeout):
        limit = format_brief(task.timeout)
        text = _("over its time limit of %s") if seconds >= task.timeout else _("near its time limit of %s")
        marks.append(("limit", text % limit))
    return marks
