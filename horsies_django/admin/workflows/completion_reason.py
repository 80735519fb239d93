"""Explain why a workflow is COMPLETED although some nodes are not, and name the nodes of its success policy.

:mod:`horsies_django.workflows.engine` decides it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.numbers import format_number
from ...core.workflow_status import WorkflowStatus, WorkflowTaskStatus
from ...models import Workflow
from .node_rows import node_rows

#: Maximum number of a case's nodes that are named, and of a policy's nodes that are read.
_MAX_NAMED: Final = 5
_MAX_READ: Final = 500


def completion_reason(workflow: Workflow, counts: Mapping[str, int]) -> str:
    """Return why a workflow is COMPLETED although nodes failed or were skipped; empty if none did.

    ``counts`` is the number of its nodes by state. Takes one statement if the workflow has a success policy.
    """
    failed, skipped = counts["FAILED"], counts["SKIPPED"]
    if workflow.status != WorkflowStatus.COMPLETED or not (failed or skipped):
        return ""
    if workflow.success_policy is not None:
        return _by_policy(workflow, workflow.success_policy)
    if failed:
        return ""  # its nodes were changed after its end
    message = ngettext(
        "Completed because no node failed. %s node was skipped, which is not a failure.",
        "Completed because no node failed. %s nodes were skipped, which is not a failure.",
        skipped,
    )
    return message % format_number(skipped)


def _by_policy(workflow: Workflow, policy: Any) -> str:
    """Name the first case of the success policy that is met; that one decides."""
    nodes = _nodes_of(workflow, policy)
    for number, case in enumerate(policy, 1):
        needed = [nodes[place] for place in case["required"] if place in nodes]
        if all(status == WorkflowTaskStatus.COMPLETED for _name, status in needed):
            names = ", ".join(name for name, _status in needed[:_MAX_NAMED])
            if (more := len(case["required"]) - _MAX_NAMED) > 0:
                names = _("%(names)s and %(more)s more") % {"names": names, "more": format_number(more)}
            numbers = {"number": number, "names": names}
            return _("Completed by its success policy: case %(number)d is met, which requires %(names)s.") % numbers
    return _("Completed by its success policy.")


def with_node_names(workflow: Workflow, policy: Any) -> Any:
    """Return a success policy with the names of its nodes in place of their positions. Takes one statement."""
    if not isinstance(policy, list):  # the message of one that can't be read
        return policy
    nodes = _nodes_of(workflow, policy)
    return [
        {key: [nodes[place][0] for place in places if place in nodes] for key, places in case.items()}
        for case in policy
    ]


def _nodes_of(workflow: Workflow, policy: Sequence[Mapping[str, Sequence[int]]]) -> dict[int, tuple[str, str]]:
    """Return the names and states of the nodes of a policy, by position."""
    places = sorted({place for case in policy for nodes in case.values() for place in nodes})
    rows = node_rows(workflow).filter(task_index__in=places[:_MAX_READ])
    return {place: (name, status) for place, name, status in rows.values_list("task_index", "node_id", "status")}
