"""After any sequence of actions, the rows and their model agree."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import TaskMachine

pytestmark = pytest.mark.django_db(transaction=True)

#: The examples are the same in each run.
SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    # A shrink step runs on the database; Hypothesis stops shrinking after five minutes.
    phases=[Phase.generate, Phase.shrink],
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
@pytest.mark.once
def test_rows_and_model_agree_after_every_step() -> None:
    run_state_machine_as_test(TaskMachine, settings=settings(SETTINGS, max_examples=6, stateful_step_count=40))


@pytest.mark.nightly
@pytest.mark.slow
def test_rows_and_model_agree_in_longer_runs() -> None:
    run_state_machine_as_test(TaskMachine, settings=settings(SETTINGS, max_examples=50, stateful_step_count=50))
