"""A task's page: all columns of its row, its timeline, its attempts, and why it is not running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from django.contrib.admin.utils import label_for_field
from django.http import HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext_lazy as _

from ...core.results import OperationalCode
from ...models import Heartbeat, Task, TaskAttempt, Worker
from ...ops.diagnosis import Reason, RelatedRow, reasons_of
from ...ops.diagnosis.reason import HELD_FOR, and_more
from ...ops.diagnosis.retries import why_not_retried
from ...ops.payload_view.contents import contents_of, error_data
from ..ages import counted, relative_time
from ..errors.rows import same_error_link
from ..formatting import download_note, format_time, masked_json, text_block
from ..links import Links
from .attempts import (
    MAX_MESSAGE,
    WIDTH,
    attempt_rows,
    error_of,
    heartbeat_rows,
    latest_attempts,
    latest_heartbeats,
    timeline,
)
from .fields import TaskFields
from .output import output_of, output_text
from .steps import step_table

#: The id of the block with the traceback at the top of the page.
TRACEBACK: Final = "horsies-traceback-text"

#: Fields in the whole width of the page.
_WIDE: Final = frozenset({"page_policy", "page_unique", "metadata", "checkpoint", "page_items"})


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with a heading, and its fields. With ``is_live``, it is refreshed while the task is live."""

    key: str
    title: Any
    names: tuple[str, ...]
    is_live: bool = True


STATE: Final = Section(
    "state",
    _("State and times"),
    (
        "page_status",
        "page_waits_for",
        "page_attempts",
        "page_progress",
        "sent_at",
        "page_enqueued_at",
        "page_next_retry_at",
        "page_claimed_at",
        "page_started_at",
        "page_finished_at",
        "good_until",
        "page_wait",
        "page_run",
        "page_queue",
        "priority",
        "page_worker",
        "page_process",
        "page_about",
        "page_workflow",
        "page_node_id",
        "page_schedule",
        "page_scheduled_for",
        "page_rerun_of",
        "page_rerun_as",
        "page_id",
    ),
)
ARGUMENTS: Final = Section("arguments", _("Call"), ("args", "kwargs", "page_items"), is_live=False)
RESULT: Final = Section("result", _("Result"), ("page_result",))
OPTIONS: Final = Section(
    "options",
    _("Options"),
    (
        "page_policy",
        "page_timeout",
        "page_retention",
        "kept_until",
        "page_run_after",
        "page_limit_key",
        "unique_key",
        "page_unique",
        "page_group",
        "page_backend",
        "page_name",
        "metadata",
        "checkpoint",
    ),
)


class TaskPage(TaskFields):
    """The page of one task."""

    def context(self) -> dict[str, Any]:
        """Return what the page's template needs."""
        task, links = self.task, self.links
        attempts = latest_attempts(task)
        beats = latest_heartbeats(task) if _has_relevant_beats(task) else []
        links.load_existing(Worker, _workers(task, attempts, beats), task._state.db)
        bars, legend = timeline(task, attempts)
        return {
            "live": task.finished_at is None,
            "error": self._error(attempts),
            "reasons": [_reason_row(task, reason, links) for reason in reasons_of(task, task.read_at)],
            "sections": {
                section.key: {"title": section.title, "fields": self._fields(section), "is_live": section.is_live}
                for section in (STATE, ARGUMENTS, RESULT, OPTIONS)
            },
            "zone": str(get_current_timezone()),
            "bars": bars,
            "legend": legend,
            "width": WIDTH,
            "output": output_of(task, self.admin.page_url("download", task.pk, "output")),
            "steps": step_table(task),
            "attempts": attempt_rows(task, links),
            "earlier_attempts": attempts[0].attempt - 1 if attempts else 0,
            "max_message": MAX_MESSAGE,
            "beats": heartbeat_rows(beats, task.read_at, links),
        }

    def _fields(self, section: Section) -> list[dict[str, Any]]:
        """Return the fields of a section that have a value."""
        values = {
            name: getattr(self, name)(self.task) if hasattr(self, name) else self._column(name)
            for name in section.names
        }
        return [
            {
                "name": name,
                "label": label_for_field(name, Task, cast("Any", self)),
                "value": value,
                "is_wide": name in _WIDE,
            }
            for name, value in values.items()
            if value not in (None, "", "-", 0)
        ]

    def _error(self, attempts: Sequence[TaskAttempt]) -> dict[str, Any] | None:
        """Return the error at the top of the page, and why the task was not retried."""
        task, error = self.task, error_of(self.task)
        if error is None:
            return None
        last = attempts[-1] if attempts else None
        return {
            "text": error,
            "more": self._message_note(error.message),
            "data": self._error_data(),
            "attempt": last.attempt if last is not None and task.finished_at is None else None,
            "traceback": text_block(error.traceback, end=True, key=TRACEBACK) if error.traceback else "",
            "traceback_key": TRACEBACK,
            "same_error": same_error_link(task.fingerprint, self.links),
            "not_retried": why_not_retried(task, last if last is None or last.attempt == task.attempt else None),
        }

    def _message_note(self, message: str) -> SafeString | str:
        """Return a link to the whole result if the page cuts the message of a failed task, and no mask hides it."""
        is_visible = isinstance(contents_of(self.task).visible("result"), dict)
        if len(message) <= MAX_MESSAGE or self.task.finished_at is None or not is_visible:
            return ""
        return download_note(MAX_MESSAGE, len(message), self._result_url)

    def _error_data(self) -> SafeString | str:
        """Return the data of the error of a failed task, masked; the download of its result has all of it."""
        contents = contents_of(self.task)
        if contents.error.get("data") is None:
            return ""
        data = error_data(contents.stored("result"), contents.mask)
        return masked_json("error-data", data, contents.mask, contents.size("result"), self._result_url)

    @property
    def _result_url(self) -> str:
        return self.admin.page_url("download", self.task.pk, "result")


def download(task: Task, part: str) -> HttpResponse:
    """Return a whole value, or all output, as plain text, masked as on the page."""
    return HttpResponse(
        output_text(task) if part == "output" else contents_of(task).text(part),
        content_type="text/plain; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="{task.pk}-{part}.txt"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "private, no-store",
        },
    )


def _has_relevant_beats(task: Task) -> bool:
    """Return whether heartbeats tell something: the task is held, or its worker crashed."""
    return task.claimed or task.error_code == OperationalCode.WORKER_CRASHED


def _workers(task: Task, attempts: Sequence[TaskAttempt], beats: Sequence[Heartbeat]) -> set[str]:
    """Return the ids of all workers that the page names."""
    named = {attempt.worker_id for attempt in attempts} | {beat.sender_id for beat in beats}
    return {*named, task.claimed_by_worker_id or ""} - {""}


def _reason_row(task: Any, reason: Reason, links: Links) -> dict[str, Any]:
    now = task.read_at
    about = [_related(row, now, links) for row in reason.about]
    about += [and_more(reason.more)] if reason.more else []
    is_on_page = reason.when in (task.enqueued_at, task.good_until)  # in the section of the state
    return {
        "code": reason.code.value,
        "words": reason.words,
        "when": format_time(reason.when) if reason.when and not is_on_page else "",
        "left": relative_time(reason.when, now) if reason.when else "",
        "links": format_html_join(", ", "{}", ((row,) for row in about)),
    }


def _related(row: RelatedRow, now: datetime, links: Links) -> SafeString | str:
    """Return a row that a reason names, linked, and for how long it has held a limit."""
    link = links.to(row.model, row.key, row.label)
    if row.since is None:
        return link
    words = format_html(str(HELD_FOR), status=row.status, duration=counted(now - row.since))
    return format_html('{} <span class="quiet">{}</span>', link, words)
