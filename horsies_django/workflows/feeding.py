"""Feeding: what the body of a node gets from other nodes, read as it begins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from django.db.models import TextField
from django.db.models.functions import Cast

from ..compat import FrameworkTask
from ..results import TaskError, TaskResult
from ..serializers import decode
from .context import WorkflowContext, WorkflowMeta
from .states import WorkflowTaskStatus

if TYPE_CHECKING:
    from ..worker.run import Run

_META: Final = "workflow_meta"
_CONTEXT: Final = "workflow_ctx"

Result = TaskResult[Any, TaskError[Any]]


def arguments(run: Run, task: FrameworkTask[..., Any]) -> dict[str, Any]:
    """Return the arguments of a node's body that come from its workflow."""
    names = task.func.__code__.co_varnames[: task.func.__code__.co_argcount + task.func.__code__.co_kwonlyargcount]
    wanted = {_META, _CONTEXT} & set(names)
    if not (run.claim.is_fed or wanted):
        return {}
    from ..models import WorkflowTask

    nodes = WorkflowTask.objects.using(run.database)
    node = nodes.select_related("workflow").get(task_id=run.task_id)
    indexes = {index for source in (*node.args_from.values(), *node.values_from.values()) for index in _each(source)}
    rows = nodes.filter(workflow=node.workflow, task_index__in=indexes | set(node.ctx_from or ()))
    columns = ("task_index", "node_id", "status", Cast("result", TextField()), "rich")
    results, ids = dict[int, Result](), dict[int, str]()
    for index, node_id, status, text, rich in rows.values_list(*columns):
        ids[index] = node_id
        if WorkflowTaskStatus(status).is_terminal and text is not None:
            results[index] = read(text, rich)
    given: dict[str, Any] = {}
    for name, source in node.args_from.items():
        _put(given, name, source, results)
    values = {index: result.ok for index, result in results.items() if result.is_ok()}
    for name, source in node.values_from.items():
        _put(given, name, source, values)
    about = {
        "workflow_id": node.workflow.pk,
        "task_index": node.task_index,
        "task_name": run.claim.task_name,
        "node_id": node.node_id,
    }
    if _META in wanted:
        given[_META] = WorkflowMeta(**about)
    if _CONTEXT in wanted:
        listed = {ids[index]: results[index] for index in node.ctx_from or () if index in results}
        given[_CONTEXT] = WorkflowContext(**about, results=listed)
    return given


def _each(source: int | list[int]) -> list[int]:
    return source if isinstance(source, list) else [source]


def _put(given: dict[str, Any], name: str, source: int | list[int], known: Mapping[int, Any]) -> None:
    """Give a parameter what there is; one for which there is nothing is left out (W-23)."""
    if isinstance(source, list):
        given[name] = [known[index] for index in source if index in known]
    elif source in known:
        given[name] = known[source]


def read(text: str, rich: bool) -> Result:
    """Read a node's result."""
    stored = json.loads(text)
    if "err" in stored:
        return TaskResult(err=TaskError.from_json(stored["err"]))
    return TaskResult(ok=decode(stored["ok"], rich=rich))
