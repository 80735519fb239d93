"""Tasks, types and conditions, some of them unregistered, for the tests of registered names."""

from __future__ import annotations

from dataclasses import dataclass

from horsies_django import Workflow, WorkflowContext, WorkflowDefinition, register_condition, register_type, task
from tests.jobs.models import Entry


@dataclass
class Parcel:
    weight: float


@dataclass
class Box:
    parcels: list[Parcel]


@task
def weigh(box: Box) -> float:
    return sum(parcel.weight for parcel in box.parcels)


@task
def identity(value):
    return value


class Shelf:
    """Holds classes that are not at the top of a module."""

    @dataclass
    class Unknown:
        size: int = 0

    @register_type
    @dataclass
    class Known:
        size: int = 0


def plain(a: int, b: int = 2) -> int:
    """Stand for a function of a library, which can't be decorated."""
    return a + b


def always_true(context: WorkflowContext) -> bool:
    return True


@register_condition
def decorated(context):
    return True


def of_a_definition(context):
    return True


def helper(context):
    """Look like a condition, but be registered nowhere."""
    Entry.objects.create(key="helper")
    return True


def undeclared(days: int) -> bool:
    """Take one argument, but no context."""
    Entry.objects.create(key="undeclared")
    return True


class Conditional(WorkflowDefinition[None]):
    one = identity.node(run_when=of_a_definition)(value=1)

    class Meta:
        definition_key = "registered.conditional"


def workflow_with_condition(condition):
    return Workflow("conditional", [identity.node(node_id="one", run_when=condition)(value=1)])
