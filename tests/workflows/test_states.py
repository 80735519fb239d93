"""The names of the states and options, and which states are terminal."""

import pytest

from horsies_django import (
    WORKFLOW_TASK_TERMINAL_STATES,
    WORKFLOW_TERMINAL_STATES,
    Join,
    OnError,
    WorkflowStatus,
    WorkflowTaskStatus,
)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (WorkflowStatus, "PENDING RUNNING PAUSED COMPLETED FAILED CANCELLED EXPIRED"),
        (WorkflowTaskStatus, "PENDING READY ENQUEUED RUNNING COMPLETED FAILED SKIPPED"),
        (Join, "ALL ANY QUORUM"),
        (OnError, "FAIL PAUSE"),
    ],
)
def test_states_joins_and_error_modes_have_the_documented_names(kind, names):
    assert kind.names == names.split()


@pytest.mark.parametrize(
    ("kind", "terminal", "names"),
    [
        (WorkflowStatus, WORKFLOW_TERMINAL_STATES, "COMPLETED FAILED CANCELLED EXPIRED"),
        (WorkflowTaskStatus, WORKFLOW_TASK_TERMINAL_STATES, "COMPLETED FAILED SKIPPED"),
    ],
)
def test_states_know_whether_they_are_terminal(kind, terminal, names):
    assert isinstance(terminal, frozenset)
    assert {state.name for state in terminal} == set(names.split())
    assert {state for state in kind if state.is_terminal} == terminal
    assert all(state.value == state.name for state in kind)
