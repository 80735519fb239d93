"""Whatever happens in whatever order, the rows and the small model of them agree."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import TaskMachine

pytestmark = pytest.mark.django_db(transaction=True)

#: Nothing here may depend on luck: the examples are the same in each run.
SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],  # each try is a run on the database; Hypothesis gives up after five minutes
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.once
def test_rows_and_model_agree_after_every_step() -> None:
    run_state_machine_as_test(TaskMachine, settings=settings(SETTINGS, max_examples=10, stateful_step_count=40))


@pytest.mark.nightly
@pytest.mark.slow
def test_rows_and_model_agree_in_longer_lives() -> None:
    run_state_machine_as_test(TaskMachine, settings=settings(SETTINGS, max_examples=50, stateful_step_count=50))
