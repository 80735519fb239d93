"""A definition that nothing imports: that it is here is enough."""

from __future__ import annotations

from horsies_django import WorkflowDefinition, task


@task
def one() -> int:
    """Return 1."""
    return 1


class Found(WorkflowDefinition[int]):
    """One node."""

    only = one.node()()

    class Meta:
        definition_key = "tests.found"
        output = "only"
