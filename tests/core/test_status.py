"""The seven states of a task."""

import json

import pytest
from django.db.models import TextChoices

import horsies_django
from horsies_django import TASK_TERMINAL_STATES, TaskStatus
from horsies_django.models import Task

LIVE = ["PENDING", "CLAIMED", "RUNNING"]
ENDED = ["COMPLETED", "FAILED", "CANCELLED", "EXPIRED"]


def test_there_are_seven_states_and_the_stored_text_is_the_name():
    pairs = [(state.name, state.value) for state in TaskStatus]

    assert pairs == [(name, name) for name in LIVE + ENDED]


def test_the_package_exports_the_states_as_text_choices():
    names = horsies_django.__all__

    assert {"TaskStatus", "TASK_TERMINAL_STATES"} <= set(names)
    assert issubclass(TaskStatus, TextChoices)
    assert all(TaskStatus.choices[index][1] for index in range(7))


def test_a_state_can_be_used_as_its_text():
    state = TaskStatus.RUNNING

    assert state == "RUNNING"
    assert (str(state), f"{state}", json.dumps(state)) == ("RUNNING", "RUNNING", '"RUNNING"')
    assert TaskStatus("RUNNING") is state


@pytest.mark.parametrize("name", LIVE + ENDED)
def test_the_first_three_states_are_live_and_the_last_four_terminal(name):
    state = TaskStatus[name]

    assert state.is_terminal is (name in ENDED)


def test_the_terminal_states_are_a_frozenset_of_four():
    states = TASK_TERMINAL_STATES

    assert isinstance(states, frozenset)
    assert states == {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED}
    assert "FAILED" in states
    assert "RUNNING" not in states


@pytest.mark.django_db
def test_the_terminal_states_work_in_a_queryset_filter():
    for name in LIVE:
        Task.objects.create(task_name=name, status=name)
    for name in ENDED:
        at = Task.objects.first().sent_at
        Task.objects.create(task_name=name, status=name, **{f"{name.lower()}_at": at})

    ended = Task.objects.filter(status__in=TASK_TERMINAL_STATES)
    living = Task.objects.exclude(status__in=TASK_TERMINAL_STATES)

    assert sorted(row.task_name for row in ended) == sorted(ENDED)
    assert sorted(row.task_name for row in living) == sorted(LIVE)


@pytest.mark.django_db
@pytest.mark.parametrize("name", LIVE + ENDED)
def test_a_task_is_claimed_while_a_worker_holds_it(name):
    at = {f"{name.lower()}_at": "2026-01-01T00:00Z"} if name in ENDED else {}

    row = Task.objects.create(task_name="x", status=name, **at)

    assert row.claimed is (name in ("CLAIMED", "RUNNING"))
    assert (row.finished_at is not None) is (name in ENDED)
