"""Explain why a workflow is COMPLETED although some nodes are not.

:mod:`horsies_django.workflows.engine` decides it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.workflow_status import WorkflowStatus
from ...models import Workflow
from ...workflows.error_codes import WorkflowCode
from ..formatting import format_number
from ..graph.boxes import GraphNode
from .node_rows import WorkflowNodes

#: Maximum number of a case's nodes that are named.
_MAX_NAMED: Final = 5


def completion_reason(workflow: Workflow, nodes: WorkflowNodes) -> str:
    """Return why a workflow is COMPLETED although nodes failed or were skipped; empty if none did unexpectedly."""
    failed, skipped = nodes.counts.get("FAILED", 0), nodes.counts.get("SKIPPED", 0)
    if workflow.status != WorkflowStatus.COMPLETED or not (failed or skipped):
        return ""
    if workflow.success_policy is not None:
        return " ".join([_by_policy(workflow.success_policy, nodes), *_missing(failed, skipped)])
    if failed:
        return _(
            "It counts as completed, and some of its nodes as failed, which no success policy excuses: they were "
            "changed after it had ended."
        )
    return _of_skipped(nodes, skipped)


def _by_policy(policy: Any, nodes: WorkflowNodes) -> str:
    """Name the first case of the success policy that is met; that one decides."""
    by_place = {node.position: node for node in nodes.nodes}
    for number, required in _cases(policy):
        needed = [by_place[place] for place in required if place in by_place]
        if len(needed) == len(required) and all(node.status == "COMPLETED" for node in needed):
            numbers = {"number": number, "names": _named(needed)}
            return (
                _("It counts as completed by its success policy: case %(number)d is met, which needs %(names)s.")
                % numbers
            )
    return _("It counts as completed by its success policy.")


def _cases(policy: Any) -> Iterator[tuple[int, list[Any]]]:
    """Yield the required nodes of each case. Invalid values of a damaged row are skipped."""
    for number, case in enumerate(policy if isinstance(policy, list) else (), 1):
        required = case.get("required") if isinstance(case, dict) else None
        if isinstance(required, list) and all(type(place) is int for place in required):
            yield number, required


def _named(nodes: list[GraphNode]) -> str:
    names = ", ".join(node.label for node in nodes[:_MAX_NAMED])
    if (more := len(nodes) - _MAX_NAMED) <= 0:
        return names
    return _("%(names)s and %(more)s more") % {"names": names, "more": format_number(more)}


def _missing(failed: int, skipped: int) -> Iterator[str]:
    """Name the nodes that did not complete and were not required."""
    if failed:
        yield ngettext(
            "%s node that failed does not matter to it.",
            "%s nodes that failed do not matter to it.",
            failed,
        ) % format_number(failed)
    if skipped:
        yield ngettext(
            "%s node that was skipped does not matter to it.",
            "%s nodes that were skipped do not matter to it.",
            skipped,
        ) % format_number(skipped)


def _of_skipped(nodes: WorkflowNodes, skipped: int) -> str:
    """Explain skipped nodes: without a policy, only failed nodes make a workflow fail."""
    by_condition = sum(
        node.status == "SKIPPED" and node.error_code == WorkflowCode.CONDITION_NOT_MET for node in nodes.nodes
    )
    message = ngettext(
        "It counts as completed because no node failed: %s node was skipped, and that is no failure.",
        "It counts as completed because no node failed: %s nodes were skipped, and that is no failure.",
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
                "%s because too few of what it waits for completed.",
                "%s because too few of what they wait for completed.",
                rest,
            )
            % format_number(rest)
        )
    return " ".join(words)
