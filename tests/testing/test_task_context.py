"""A context to call a body with."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from horsies_django import Progress
from horsies_django.core.exceptions import TaskRevoked
from horsies_django.testing import task_context
from tests.jobs import tasks
from tests.schedules.jobs import slot
from tests.testing.jobs import import_rows


def test_a_body_runs_with_it_and_its_progress_and_checkpoints_are_recorded():
    context = task_context(import_rows, attempt=2, state=["a"])

    assert import_rows.func(context, ["a", "b", "c"]) == ["attempt 2 of 3", "a", "b", "c"]
    assert context.reports == [Progress(done=2, total=3, message="b"), Progress(done=3, total=3, message="c")]
    assert context.saved == [["a", "b"], ["a", "b", "c"]]
    assert context.state == ["a", "b", "c"]


def test_it_has_the_facts_of_the_call():
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    context = task_context(
        import_rows, attempt=2, max_attempts=2, metadata={"tenant": "x"}, scheduled_for=moment, args=[["a"]]
    )

    assert (context.attempt, context.max_attempts, context.is_last_attempt) == (2, 2, True)
    assert context.metadata["tenant"] == "x"
    assert context.scheduled_for == moment
    assert context.task_result.args == [["a"]]
    assert slot.func(context) == moment.isoformat()
    assert tasks.attempt.func(context) == 2


def test_a_cancelled_body_stops_at_its_next_checkpoint():
    context = task_context(import_rows, is_cancelled=True)

    with pytest.raises(TaskRevoked):
        import_rows.func(context, ["a"])
    assert context.is_cancelled
    assert context.saved == []


def test_bad_reports_and_states_are_rejected_as_in_a_worker():
    context = task_context(import_rows)

    with pytest.raises(ValueError, match="done=-1"):
        context.progress(-1)
    with pytest.raises(TypeError, match="the state"):
        context.save(object())
    assert (context.reports, context.saved) == ([], [])


@pytest.mark.parametrize("attempt", [0, 4])
def test_an_attempt_out_of_range_is_rejected(attempt):
    with pytest.raises(ValueError, match=f"attempt is {attempt}; allowed: 1 to max_attempts, which is 3"):
        task_context(import_rows, attempt=attempt, max_attempts=3)
