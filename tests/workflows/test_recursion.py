"""Definitions that contain themselves."""

from __future__ import annotations

import pytest

from horsies_django import Workflow, WorkflowDefinition, sleep
from horsies_django.core.workflow_errors import DefinitionErrorCode
from horsies_django.exceptions import InvalidWorkflow
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.workflows import registry_check
from tests.workflows import bodies, jobs
from tests.workflows.conftest import mistakes_of
from tests.workflows.runs import codes, start_and_drain

BUILT: list[str] = []


def definition(key: str, *parts: str, **bases):
    """Return a definition with a step and the definitions of these keys, which may be defined later."""

    def build_with(cls):
        BUILT.append(key)
        nodes = {part: DEFINITIONS[part].node()() for part in parts}
        return Workflow(key, {"step": jobs.nothing.node()(), **nodes})

    meta = type("Meta", (), {"definition_key": key})
    DEFINITIONS[key] = type(key, (WorkflowDefinition,), {"Meta": meta, "build_with": classmethod(build_with), **bases})
    return DEFINITIONS[key]


DEFINITIONS: dict[str, type[WorkflowDefinition]] = {}


@pytest.fixture(autouse=True)
def _clear():
    DEFINITIONS.clear()
    BUILT.clear()


def cycles(build):
    """Return the node and the message of each cycle that keeps something from being built."""
    found = [mistake for mistake in mistakes_of(build) if mistake.code is DefinitionErrorCode.CONTAINS_ITSELF]
    return [(mistake.node, mistake.problem) for mistake in found]


def test_a_definition_that_contains_itself_is_refused():
    alone = definition("alone", "alone")

    (found,) = cycles(alone.build)

    assert found == ("alone", "a definition contains itself: alone >> alone; allowed: no cycle.")


def test_a_definition_that_contains_itself_through_others_is_refused():
    a, b, c = definition("a", "b"), definition("b", "c"), definition("c", "a")

    assert cycles(a.build) == [("b", "a definition contains itself: a >> b >> c >> a; allowed: no cycle.")]
    assert cycles(b.build) == [("c", "a definition contains itself: b >> c >> a >> b; allowed: no cycle.")]
    assert cycles(c.build) == [("a", "a definition contains itself: c >> a >> b >> c; allowed: no cycle.")]
    assert cycles(a.build), "the second time too"


def test_the_error_about_a_nested_cycle_names_only_the_cycle():
    definition("a", "b")
    definition("b", "a")
    outer = definition("outer", "a")

    assert cycles(outer.build) == [("a", "a definition contains itself: a >> b >> a; allowed: no cycle.")]
    flat = cycles(lambda: Workflow("flat", {"sub": outer.node()()}))
    assert flat == [("sub", "a definition contains itself: a >> b >> a; allowed: no cycle.")]


def test_a_definition_with_itself_as_an_attribute_is_refused():
    class Attribute(WorkflowDefinition[None]):
        class Meta:
            definition_key = "attribute"

        step = jobs.nothing.node()()

    Attribute.again = Attribute.node()()

    assert cycles(Attribute.build) == [
        ("again", "a definition contains itself: attribute >> attribute; allowed: no cycle.")
    ]


def test_check_reports_a_cycle():
    definition("a", "b")
    definition("b", "a")

    found = [mistake for mistake in registry_check.find_errors() if mistake.code is DefinitionErrorCode.CONTAINS_ITSELF]

    assert sorted(mistake.workflow for mistake in found) == ["a", "b"]
    assert all(">>" in mistake.problem for mistake in found)


def test_a_definition_may_contain_the_same_part_twice():
    for name, parts in {"top": ("left", "right"), "left": ("low",), "right": ("low",), "low": ()}.items():
        definition(name, *parts)

    assert DEFINITIONS["top"].build().node_ids == ("step", "left", "right")


def test_a_part_is_built_once_to_look_for_cycles():
    definition("part")
    outer = definition("outer", "part")

    for _ in range(3):
        outer.build()
    Workflow("many", [DEFINITIONS["part"].node()() for _ in range(100)])

    assert BUILT.count("part") == 1


def test_other_mistakes_of_a_part_are_reported_when_the_part_is_built():
    class Broken(WorkflowDefinition[None]):
        class Meta:
            definition_key = "broken"

        @classmethod
        def build_with(cls):
            raise RuntimeError("not today")

    class Mistaken(WorkflowDefinition[None]):
        class Meta:
            definition_key = "mistaken"

        nap = sleep(-1)

    built = Workflow("outer", {"broken": Broken.node()(), "mistaken": Mistaken.node()()})

    assert built.node_ids == ("broken", "mistaken")
    with pytest.raises(InvalidWorkflow, match="HRS-043"):
        Mistaken.build()


def test_a_definition_with_arguments_may_contain_itself():
    """Whether the recursion ends depends on its arguments."""
    assert bodies.Deep.build_with(left=3).node_ids == ("below", "count")


def test_a_recursion_that_a_default_argument_ends_is_accepted():
    class Ends(WorkflowDefinition[None]):
        class Meta:
            definition_key = "ends"

        @classmethod
        def build_with(cls, *, more: bool = False):
            return Workflow("ends", {"step": jobs.nothing.node()(), **({"more": Ends.node()()} if more else {})})

    assert Ends.build_with(more=True).node_ids == ("step", "more")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_cycle_that_appears_only_in_a_run_fails_at_its_first_node(drain):
    turns: list[str] = []

    class Turns(WorkflowDefinition[None]):
        class Meta:
            definition_key = "turns"

        @classmethod
        def build_with(cls):
            return Workflow("turns", {"step": jobs.nothing.node()(), **{name: Turns.node()() for name in turns}})

    workflow = Workflow("outer", {"sub": Turns.node()()})
    turns.append("again")
    handle = start_and_drain(workflow, drain)

    assert codes(handle) == {"sub": "UNHANDLED_EXCEPTION"}
    assert "turns >> turns" in handle.get(0).err.message
    assert WorkflowRow.objects.count() == 1
