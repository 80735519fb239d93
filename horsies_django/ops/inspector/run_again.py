"""Run an ended task again as a new task, with other arguments if need be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.debug import get_default_exception_reporter_filter

from ...core.compat import task_backends
from ...core.mask import MASKED, Mask
from ...core.operations import log_operation
from ...core.serialization import decode_call, decode_problems
from ...core.status import TASK_TERMINAL_STATES
from ...enqueue.backend import HorsiesBackend
from ...enqueue.call_keys import has_masked_key
from ...enqueue.handle import TaskHandle
from ...models import Task
from ...models.operator_actions import ENGINE_TASK_PREFIX
from ..payload_view.contents import contents_of
from .inspector import registered_task

#: Stands for a value that a mask hides. No call is sent with it.
HIDDEN: Final = "<hidden: enter again>"

#: Maximum characters of stored arguments that can be edited.
MAX_CHARACTERS: Final = 100_000

_MASKED_KEY: Final = gettext_lazy(
    "A masked value is part of the unique or limit key of this call, so a send could confirm a guess."
)

#: The maximum depth of nesting; deeper values are hidden, as masks hide them.
_DEEPEST: Final = 50


@dataclass(slots=True)
class EditableCall:
    """The arguments of a task as JSON values, to edit.

    Attributes:
        args, kwargs: The arguments as they are stored, with type tags, but with ``HIDDEN`` for each masked value.
        hidden: The places of the masked values, such as ``args[0]`` and ``kwargs["card"]["cvc"]``.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    hidden: list[str] = field(default_factory=list)


class InvalidArguments(ValueError):
    """Arguments that can't be sent. ``where`` is ``args`` or ``kwargs``."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(message)
        self.where = where


def why_not_run_again(task: Task) -> str:
    """Return a translated sentence that says why a task can't be run again; empty if it can. Runs no query."""
    if task.status not in TASK_TERMINAL_STATES:
        return _("The task has not ended.")
    if task.workflow_id is not None or task.task_name.startswith(ENGINE_TASK_PREFIX):
        return _("The task is a node of a workflow: retry the node, or start the workflow again.")
    if task.has_inputs or task.item_count is not None:
        return _("The task was given the calls of a group, which are not its own arguments.")
    try:
        registered = registered_task(task.task_name)
    except ValueError:
        return _("This process does not know the task %s.") % task.task_name
    if registered.gather is not None:
        return _("The task gathers its calls into groups: send a new call instead.")
    if not isinstance(_backend(task), HorsiesBackend):
        return _("TASKS no longer has the backend %s as a HorsiesBackend.") % task.backend
    return ""


def why_not_editable(task: Task) -> str:
    """Return a translated sentence that says why the arguments of a task can't be edited; empty if they can.

    The task has the texts of its arguments (see :func:`~..payload_view.contents.with_payload_texts`).
    """
    contents = contents_of(task)
    if contents.size("args") + contents.size("kwargs") > MAX_CHARACTERS:
        return _("The arguments are too large to be edited here.")
    try:
        args, kwargs = contents.stored("args"), contents.stored("kwargs")
    except ValueError:
        args = kwargs = None
    if not (isinstance(args, list) and isinstance(kwargs, dict)):
        return _("The stored arguments can't be read.")
    return str(_MASKED_KEY) if has_masked_key(registered_task(task.task_name), args, kwargs) else ""


def editable_call(task: Task) -> EditableCall:
    """Return the arguments of a task to edit, without those that its mask hides. See :func:`why_not_editable`."""
    contents = contents_of(task)
    args, kwargs = contents.stored("args"), contents.stored("kwargs")
    mask, hidden = contents.mask, list[str]()
    shown = []
    for place, (value, seen) in enumerate(zip(args, mask.apply_to_args(args), strict=True)):
        path = f"args[{place}]"
        shown.append(_hide(path, hidden) if seen is not value else _without_hidden(mask, value, path, hidden))
    named = _without_hidden(mask, kwargs, "kwargs", hidden)
    return EditableCall(shown, named, hidden)


def run_again(
    task: Task, args: Sequence[Any], kwargs: Mapping[str, Any], *, task_id: UUID, delay: float | None = None,
    queue_name: str | None = None, priority: int | None = None,
) -> TaskHandle[Any]:  # fmt: skip
    """Send a new task of the same name with these arguments, and return its handle. Its row names the old one.

    ``args`` and ``kwargs`` are JSON values, with type tags if those of the old row have them. The new task has the
    options of its code; ``queue_name`` and ``priority`` are those of the old row if they are None. ``delay`` is in
    seconds. With the same ``task_id``, the same call is sent once.

    Raises InvalidArguments for a value that still is a mask and for one that the task does not take, InvalidTask for
    another bad option, UniqueConflict, PayloadMismatch, and ValueError as :func:`why_not_run_again` says or if a key of
    the call has a masked value.
    """
    if problem := why_not_run_again(task):
        raise ValueError(problem)
    _refuse_masks("args", args)
    _refuse_masks("kwargs", kwargs)
    registered = registered_task(task.task_name)
    if has_masked_key(registered, args, kwargs):
        raise ValueError(_MASKED_KEY)
    called = _decoded(args, kwargs, typed=task.typed_payload)
    options: dict[str, Any] = {
        "backend": task.backend,
        "queue_name": queue_name or task.queue_name,
        "priority": task.priority if priority is None else priority,
        "task_id": task_id,
    }
    if delay:
        options["run_after"] = timedelta(seconds=delay)
    sent = registered.with_options(**options)
    if task.about_row is not None:
        sent = replace(sent, about_row=task.about_row)
    backend = _backend(task)
    assert isinstance(backend, HorsiesBackend)  # checked above
    backend.validate_task(sent)
    try:
        handle = backend.send(sent, *called, own={"rerun_of_id": task.pk})
    except (TypeError, ValueError) as error:
        raise InvalidArguments("args" if args and not _names_any(error, kwargs) else "kwargs", str(error)) from error
    log_operation("task.run_again", 1, id=task.pk, new_id=handle.id, task=task.task_name)
    return handle


def _backend(task: Task) -> object:
    return task_backends[task.backend] if task.backend in task_backends.settings else None


def _names_any(error: Exception, names: Mapping[str, Any]) -> bool:
    text = str(error)
    return any(repr(name) in text for name in names)


def _without_hidden(mask: Mask, value: Any, path: str, hidden: list[str], levels: int = _DEEPEST) -> Any:
    """Return a copy of a value with ``HIDDEN`` for everything in it that the mask hides."""
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        return _hide(path, hidden)
    if isinstance(value, list):
        return [
            _without_hidden(mask, member, f"{path}[{place}]", hidden, levels - 1) for place, member in enumerate(value)
        ]
    shown = {}
    for name, member in value.items():
        below = f"{path}[{json.dumps(name, ensure_ascii=False)}]"
        is_hidden = mask.apply(name, member) is not member
        shown[name] = _hide(below, hidden) if is_hidden else _without_hidden(mask, member, below, hidden, levels - 1)
    return shown


def _hide(path: str, hidden: list[str]) -> str:
    hidden.append(path)
    return HIDDEN


def _refuse_masks(where: str, value: Any) -> None:
    """Raise InvalidArguments if a text in a value is, or contains, one that stands for a hidden value."""
    masks = {HIDDEN, MASKED, get_default_exception_reporter_filter().cleansed_substitute}
    if paths := sorted(_paths_with(masks, value, where)):
        raise InvalidArguments(where, _("Enter the hidden values again: %s.") % ", ".join(paths))


def _paths_with(masks: set[str], value: Any, path: str) -> Iterator[str]:
    if isinstance(value, str):
        if any(mask in value for mask in masks):
            yield path
    elif isinstance(value, Mapping):
        for name, member in value.items():
            yield from _paths_with(masks, name, path)
            yield from _paths_with(masks, member, f"{path}[{json.dumps(name, ensure_ascii=False)}]")
    elif isinstance(value, Sequence):
        for place, member in enumerate(value):
            yield from _paths_with(masks, member, f"{path}[{place}]")


def _decoded(args: Sequence[Any], kwargs: Mapping[str, Any], *, typed: bool) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the values of JSON arguments. Raises InvalidArguments for a type tag that can't be read."""
    for where, values in (("args", list(args)), ("kwargs", list(kwargs.values()))):
        problems = [problem for value in values for problem in decode_problems(value)] if typed else []
        if problems:
            raise InvalidArguments(where, "; ".join(problems))
    try:
        return decode_call(list(args), dict(kwargs), typed=typed)
    except Exception as error:  # whatever the class of a value raises
        raise InvalidArguments("kwargs" if kwargs else "args", f"{type(error).__name__}: {error}") from error
