"""One object owns the state of a runner's loop, and only the producer writes it."""

import ast
from pathlib import Path

import pytest

import horsies_django.worker

pytestmark = pytest.mark.once

FOLDER = Path(horsies_django.worker.__file__).parent

#: Modules that the producer calls. Each keeps at most private state and returns values.
COLLABORATORS = [
    "claim_budget",
    "limit_releaser",
    "loop_schedule",
    "loop_state",
    "poll_interval",
    "queue_poller",
    "queue_selector",
    "request_follower",
    "result_buffer",
    "result_publisher",
    "slot_pool",
    "start_ahead",
    "store",
    "tick_transaction",
    "watchdog",
]

#: Methods that change a pool, the buffer, the poll interval or the set of limits: only the producer calls them.
CHANGES = {
    "mark_empty",
    "mark_ready",
    "mark_stalled",
    "poll_by",
    "postpone",
    "prefer_deep",
    "record_claim",
    "record_notification",
    "record_poll",
    "release_unlocked",
    "retry_postponed",
    "set_notified",
    "set_prefetched",
    "set_queues",
    "set_withdrawn",
    "submit",
    "watch",
    "withdraw",
}


def tree(module):
    return ast.parse((FOLDER / f"{module}.py").read_text())


def written(module):
    """Return the objects whose attributes a module assigns, as source text."""
    nodes = (node for node in ast.walk(tree(module)) if isinstance(node, ast.Attribute))
    return {ast.unparse(node.value) for node in nodes if not isinstance(node.ctx, ast.Load)}


@pytest.mark.parametrize("module", COLLABORATORS)
def test_a_collaborator_of_the_producer_writes_only_its_own_attributes(module):
    allowed = {"self"} | ({"tick"} if module == "tick_transaction" else set())  # it makes and returns a Tick

    assert written(module) <= allowed


@pytest.mark.parametrize("module", COLLABORATORS)
def test_a_collaborator_of_the_producer_changes_no_other_collaborator(module):
    calls = (node.func for node in ast.walk(tree(module)) if isinstance(node, ast.Call))
    others = (func for func in calls if isinstance(func, ast.Attribute) and func.attr in CHANGES)

    # A pool submits to its own executor.
    assert {ast.unparse(func.value) for func in others} <= {"self", "self.executor"}


def test_the_producer_assigns_only_attributes_of_the_loop_state():
    assert written("producer") <= {"self", "state", "self._state", "execution"}
    assignments = (node for node in ast.walk(tree("producer")) if isinstance(node, ast.Assign))
    on_execution = {
        ast.unparse(target) for node in assignments for target in node.targets if "execution." in ast.unparse(target)
    }
    assert on_execution <= {"execution.stored_progress"}
    (init,) = (n for n in ast.walk(tree("producer")) if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    own = {node.attr for node in ast.walk(init) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    stores = (n for n in ast.walk(tree("producer")) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    in_self = [n.attr for n in stores if ast.unparse(n.value) == "self"]
    assert len(in_self) == len(own), "an attribute of the producer is assigned outside __init__(): it is state"
