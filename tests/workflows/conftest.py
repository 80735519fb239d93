"""Helpers of the tests of workflow definitions."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from horsies_django import InvalidWorkflow, Workflow
from horsies_django.core.workflow_errors import DefinitionError
from horsies_django.models import WorkflowTask


def blueprint_of(workflow: Workflow[Any]) -> SimpleNamespace:
    """Return the columns of a workflow as attributes, and its nodes, which are not saved."""
    blueprint = workflow.blueprint()
    return SimpleNamespace(**blueprint.columns, nodes=[WorkflowTask(**columns) for columns in blueprint.nodes])


def mistakes_of(build: Callable[..., Any], *args: Any, **kwargs: Any) -> list[DefinitionError]:
    """Return the mistakes of the InvalidWorkflow that this call raises."""
    with pytest.raises(InvalidWorkflow) as raised:
        build(*args, **kwargs)
    return list(raised.value.mistakes)


def only(code: str, nodes: Any, **options: Any) -> DefinitionError:
    """Return the only mistake of a workflow, and check its code."""
    mistakes = mistakes_of(Workflow, "import", nodes, **options)
    assert [str(mistake.code) for mistake in mistakes] == [f"HRS-{code}"], "\n".join(map(str, mistakes))
    return mistakes[0]
