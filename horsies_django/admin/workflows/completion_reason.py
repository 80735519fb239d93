"""Explain why a workflow is COMPLETED although some nodes are not.

:mod:`horsies_django.workflows.engine` decides it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.numbers import format_number
from ...core.workflow_status import WorkflowStatus
from ...models import Workflow
from ...workflows.error_codes import WorkflowCode
from ..graph.boxes import GraphNode
from .node_rows import WorkflowNodes, node_rows

#: Maximum number of a case's nodes that are named.
_MAX_NAMED: Final = 5

#: Maximum number of nodes of a policy whose names are read.
_MAX_LOOKED_UP: Final = 500


def completion_reason(workflow: Workflow, nodes: WorkflowNodes) -> str:
    """Return why a workflow is COMPLETED although nodes failed or were skipped; empty if none did unexpectedly."""
    failed, skipped = nodes.counts.get("FAILED", 0), nodes.counts.get("SKIPPED", 0)
    if workflow.status != WorkflowStatus.COMPLETED or not (failed or skipped):
        return ""
    if workflow.success_policy is not None:
        return " ".join([_by_policy(workflow.success_policy, nodes), *_missing(failed, skipped)])
    if failed:
        return _(
            "Completed, although some nodes failed and no success policy allows that: the nodes were changed "
            "after the workflow finished."
        )
    return _of_skipped(nodes, skipped)


def _by_policy(policy: Any, nodes: WorkflowNodes) -> str:
    """Name the first case of the success policy that is met; that one decides."""
    by_place = {node.position: node for node in nodes.nodes}
    for number, required in _cases(policy):
        needed = [by_place[place] for place in required if place in by_place]
        if len(needed) == len(required) and all(node.status == "COMPLETED" for node in needed):
            numbers = {"number": number, "names": _named(needed)}
            return _("Completed by its success policy: case %(number)d is met, which requires %(names)s.") % numbers
    return _("Completed by its success policy.")


def _cases(policy: Any) -> Iterator[tuple[int, list[Any]]]:
    """Yield the required nodes of each case. Invalid values of a damaged row are skipped."""
    for number, case in enumerate(policy if isinstance(policy, list) else (), 1):
        required = case.get("required") if isinstance(case, dict) else None
        if isinstance(required, list) and all(type(place) is int for place in required):
            yield number, required


def with_node_names(workflow: Workflow, policy: Any) -> Any:
    """Return a success policy with the names of its nodes in place of their indexes. Takes one statement."""
    cases = [case for case in policy if isinstance(case, dict)] if isinstance(policy, list) else []
    lists = [value for case in cases for value in case.values() if isinstance(value, list)]
    indexes = {place for places in lists for place in places if type(place) is int}
    if not indexes:
        return policy
    rows = node_rows(workflow).filter(task_index__in=sorted(indexes)[:_MAX_LOOKED_UP])
    names: dict[Any, str] = dict(rows.values_list("task_index", "node_id"))
    return [_renamed(case, names) if isinstance(case, dict) else case for case in policy]


def _renamed(case: dict[str, Any], names: dict[Any, str]) -> dict[str, Any]:
    return {
        key: [names.get(place, place) if type(place) is int else place for place in value]
        if isinstance(value, list)
        else value
        for key, value in case.items()
    }


def _named(nodes: list[GraphNode]) -> str:
    names = ", ".join(node.label for node in nodes[:_MAX_NAMED])
    if (more := len(nodes) - _MAX_NAMED) <= 0:
        return names
    return _("%(names)s and %(more)s more") % {"names": names, "more": format_number(more)}


def _missing(failed: int, skipped: int) -> Iterator[str]:
    """Name the nodes that did not complete and were not required."""
    if failed:
        yield ngettext(
            "%s failed node is not required.",
            "%s failed nodes are not required.",
            failed,
        ) % format_number(failed)
    if skipped:
        yield ngettext(
            "%s skipped node is not required.",
            "%s skipped nodes are not required.",
            skipped,
        ) % format_number(skipped)


def _of_skipped(nodes: WorkflowNodes, skipped: int) -> str:
    """Explain skipped nodes: without a policy, only failed nodes make a workflow fail."""
    by_condition = sum(
        node.status == "SKIPPED" and node.error_code == WorkflowCode.CONDITION_NOT_MET for node in nodes.nodes
    )
    message = ngettext(
        "Completed because no node failed. %s node was skipped, which is not a failure.",
        "Completed because no node failed. %s nodes were skipped, which is not a failure.",
        skipped,
    )
    words = [message % format_number(skipped)]
    if by_condition:
        words.append(
            ngettext("%s by its own condition.", "%s by their own conditions.", by_condition)
            % format_number(by_condition)
        )
    if rest := skipped - by_condition:
        words.append(
            ngettext(
                "%s because too few of its dependencies completed.",
                "%s because too few of their dependencies completed.",
                rest,
            )
            % format_number(rest)
        )
    return " ".join(words)
