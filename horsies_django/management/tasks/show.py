"""``horsies_task list`` and ``show``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import chain, islice
from typing import Any, Final

from django.core.management.base import CommandError, OutputWrapper

from horsies_django.core.printable import one_line
from horsies_django.management.base import table
from horsies_django.ops.inspector import Inspector, TaskDetail, TaskSummary
from horsies_django.ops.inspector.inspector import PAGE
from horsies_django.ops.task_states import WAITING, State, Wait, waits_until

from ...core.numbers import format_brief, format_relative
from .act import parse_count, parse_filters, parse_ids

_HEADS: Final = ("id", "state", "task", "queue", "priority", "attempt", "when", "error", "fingerprint", "")

#: Maximum characters of a line that ``show`` prints.
MAX_LINE: Final = 2_000

#: What ``show`` prints in another way than as a line with its name, or not at all.
_OTHERS: Final = {
    *("id", "task", "call", "state", "wait", "is_orphaned", "why", "payload", "items", "attempts"),
    *("steps", "step_count", "traceback", "is_registered", "seen_at"),
}


def print_list(inspector: Inspector, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
    """Print tasks page by page."""
    limit = None if options["all"] else parse_count("--limit", options["limit"])
    size = PAGE if limit is None else min(limit, PAGE)
    pages = inspector.pages(parse_filters(options), size=size, after=options["after"])
    rest = islice(chain.from_iterable(pages), limit)
    last: TaskSummary | None = None
    printed = 0
    while page := list(islice(rest, size)):
        for line in _lines(page, options, with_heads=printed == 0):
            out.write(line)
        last, printed = page[-1], printed + len(page)
    if last is not None and printed == limit and not options["json"] and not options["ids"]:
        err.write(f"There may be more: --after {last.id}")


def _lines(page: list[TaskSummary], options: dict[str, Any], *, with_heads: bool) -> Iterator[str]:
    if options["ids"]:
        yield from (str(task.id) for task in page)
    elif options["json"]:
        yield from (json.dumps(task.as_json(), ensure_ascii=False) for task in page)
    else:
        heads, *rows = table(_HEADS, [_row(task) for task in page], 4)
        yield from ([heads] if with_heads else [])
        yield from rows


def _row(task: TaskSummary) -> tuple[str, ...]:
    return (
        str(task.id),
        _state(task),
        task.task,
        task.queue,
        str(task.priority),
        str(task.attempt),
        _when(task),
        task.error_code or "",
        task.fingerprint or "",
        " ".join(task.call.split()) if task.item_count is None else _group(task),
    )


def _group(task: TaskSummary) -> str:
    key = "" if task.group_key is None else f"{task.group_key}: "
    return f"{key}{task.item_count} call{'' if task.item_count == 1 else 's'}"


def _state(task: TaskSummary) -> str:
    note = "orphaned" if task.is_orphaned else task.waits_for or task.wait
    return str(task.state) if note in (None, Wait.DUE, task.state) else f"{task.state} ({note})"


def _when(task: TaskSummary) -> str:
    if task.ended_at is not None:
        return format_relative((task.seen_at - task.ended_at).total_seconds())
    if task.state is State.AWAITING and waits_until(task, task.seen_at) is None:
        return ""
    if task.state in WAITING or task.started_at is None:
        return format_relative((task.seen_at - task.due_at).total_seconds())
    return format_brief(task.seen_at - task.started_at)


def print_tasks(inspector: Inspector, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
    """Print the details of tasks. Raises CommandError if one does not exist."""
    missing = 0
    for key in parse_ids(options["ids"]):
        task = inspector.show(key)
        if task is None:
            missing += 1
            err.write(f"{key}: there is no such task")
        elif options["json"]:
            out.write(json.dumps(task.as_json(), ensure_ascii=False))
        else:
            for line in _detail_lines(task):
                out.write(_cut(one_line(line)))
    if missing:
        raise CommandError(f"{missing} not found.", returncode=1)


def _cut(line: str) -> str:
    if len(line) <= MAX_LINE:
        return line
    return f"{line[:MAX_LINE]}… ({len(line):,} characters in all: --json prints them)"


def _detail_lines(task: TaskDetail) -> Iterator[str]:
    yield f"{task.id}  {task.task}"
    if not task.is_registered:
        yield "  no task of this name is registered in this process"
    yield f"  state: {_state(task)}"
    yield from (f"  why: {words}" for words in task.why)
    facts = {field.name: getattr(task, field.name) for field in fields(task) if field.name not in _OTHERS}
    yield from (f"  {name}: {value}" for name, value in facts.items() if value is not None)
    for name, value in task.payload.items():
        yield f"  {name}: {json.dumps(value, ensure_ascii=False)}"
    for position, call in enumerate(task.items):
        yield f"  call {position}: {json.dumps(call, ensure_ascii=False)}"
    if (task.item_count or 0) > len(task.items):
        yield f"  the first {len(task.items)} of {task.item_count} calls"
    for attempt in task.attempts:
        error = " ".join(str(attempt[name]) for name in ("error_code", "error_message") if attempt[name])
        again = ", to be tried again" if attempt["will_retry"] else ""
        yield f"  attempt {attempt['attempt']}: {attempt['outcome']}{again} {error}".rstrip()
    if task.step_count > len(task.steps):
        yield f"  the last {len(task.steps)} of {task.step_count} steps"
    yield from map(_step_line, task.steps)
    if task.traceback:
        yield from (f"  {line}" for line in task.traceback.splitlines())


def _step_line(step: Mapping[str, Any]) -> str:
    name = step["name"] if step["number"] == 1 else f"{step['name']} #{step['number']}"
    tries = "" if step["attempts"] < 2 else f" at attempt {step['attempts']}"
    end = f"to {step['completed_at']}" if step["completed_at"] else f"until {step['due_at']}" if step["due_at"] else ""
    return f"  {step['kind']} {name}: {step['status']}{tries} from {step['started_at']} {end}".rstrip()
