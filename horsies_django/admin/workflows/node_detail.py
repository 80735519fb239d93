"""The details of one workflow node: a description first, then the columns of its row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.numbers import fill_numbers
from ...core.workflow_status import Join
from ...models import TaskAttempt, WorkflowTask
from ..formatting import as_json, format_time
from .failing_node import NodeError, attempt_error, node_error
from .masking import mask_of_node
from .node_table import NodeLine

#: Columns that the description covers, so they are not listed again.
_SHOWN_ELSEWHERE: Final = frozenset({"workflow", "node_id", "kwargs", "result"})


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """A node's description, its error, its large values, and its non-empty columns by label."""

    words: list[tuple[str, Any]]
    error: NodeError | None
    error_heading: str
    values: list[tuple[str, Any]]
    row: list[tuple[str, Any]]


def node_detail(node: WorkflowTask, line: NodeLine, *, is_on_top: bool = False) -> NodeDetail:
    """Return the details of a node, given its line in the table.

    ``is_on_top``: the top of the page already shows its error. Takes one statement if its task waits for a retry.
    """
    failed = _failed_attempt(node) if line.error_code and not _has_error(node) else None
    error = node_error(node) if _has_error(node) and not is_on_top else None
    return NodeDetail(
        words=[(name, value) for name, value in _words(node, line) if value],
        error=error if failed is None else attempt_error(failed),
        error_heading=_("Error") if failed is None else _("Error of attempt %d") % failed.attempt,
        values=[(name, _shown(node, column)) for name, column in _values(node)],
        row=[
            (field.name, _shown(node, field.name))
            for field in node._meta.concrete_fields
            if field.name not in _SHOWN_ELSEWHERE and _is_something(field.value_from_object(node))
        ],
    )


def _words(node: WorkflowTask, line: NodeLine) -> Iterator[tuple[str, Any]]:
    yield _("State"), format_html('<span class="horsies-status horsies-status-{}">{}</span>', line.status, line.state)
    yield _("Details"), _describe_work(line)
    yield _("Why it has not finished"), line.why
    yield _("Waits for"), _sources(line)
    yield _("Starts"), _condition(node)
    yield _("Attempts"), line.attempts
    yield _("Started"), line.began if node.started_at else ""
    yield _("Finished"), format_time(node.completed_at, exactly=False) if node.completed_at else ""
    yield _("Time"), format_html("{} {}", line.time, line.bar) if line.time else ""
    yield _("Deadline"), format_time(node.good_until, exactly=False) if node.good_until else ""
    if node.task_name:
        yield _("Queue"), node.queue_name
        yield _("Priority"), str(node.priority)


def _describe_work(line: NodeLine) -> SafeString | str:
    """Name its task, subworkflow or event, with a link to it."""
    words = line.task or line.kind
    shown: SafeString | str = format_html('<a href="{}">{}</a>', line.address, words) if line.has_other_page else words
    return format_html("{} ({})", shown, line.kind) if line.task and line.kind else shown


def _sources(line: NodeLine) -> SafeString:
    links = format_html_join(", ", '<a href="?node={}#node">{}</a>', line.waits_for)
    if not line.more:
        return links
    return format_html("{} {}", links, fill_numbers(ngettext("and %d more", "and %d more", line.more), line.more))


def _condition(node: WorkflowTask) -> str:
    """Describe the node's start condition, if it is not that all its dependencies have ended."""
    parts = []
    if node.join == Join.ANY:
        parts.append(_("when one of these has completed"))
    elif node.join == Join.QUORUM:
        parts.append(fill_numbers(_("when %d of these have completed"), node.min_success or 1))
    elif node.allow_failed_deps:
        parts.append(_("also after failed or skipped nodes"))
    if node.run_when:
        parts.append(_("if %s returns true") % node.run_when)
    if node.skip_when:
        parts.append(_("unless %s returns true") % node.skip_when)
    return "; ".join(parts)


def _values(node: WorkflowTask) -> Iterator[tuple[str, str]]:
    if node.kwargs:
        yield _("Arguments"), "kwargs"
    if node.result is not None and not _has_error(node):
        yield _("Result"), "result"


def _failed_attempt(node: WorkflowTask) -> TaskAttempt | None:
    """Return the last attempt of its task if it ended with an error."""
    attempts = TaskAttempt.objects.using(node._state.db).filter(task=node.task_id)
    last: TaskAttempt | None = attempts.order_by("-attempt").first()
    return last if last is not None and last.error_code else None


def _has_error(node: WorkflowTask) -> bool:
    return node.error_code is not None or (isinstance(node.result, dict) and "err" in node.result)


def _is_something(value: Any) -> bool:
    return value not in (None, "", [], {}) and value is not False


def _shown(node: WorkflowTask, name: str) -> Any:
    value = node._meta.get_field(name).value_from_object(node)  # type: ignore[union-attr]  # only concrete fields are listed
    if isinstance(value, datetime):
        return format_time(value, exactly=False)
    if not isinstance(value, dict | list):
        return str(value)
    mask = mask_of_node(node)
    return as_json(mask.apply(name, value), mask)
