"""Sending a task by its path, and changing the arguments of a scheduled one."""

import sys
from uuid import uuid4

import pytest

from horsies_django import TaskHandle
from horsies_django.core.compat import InvalidTask
from horsies_django.models import Task
from horsies_django.ops.inspector import tasks
from tests.jobs import tasks as jobs
from tests.ops.inspector.factories import make

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_task_is_sent_by_its_path(drain):
    handle = tasks().enqueue("tests.jobs.tasks.add", [2], {"b": 3})
    drain()

    assert isinstance(handle, TaskHandle)
    assert handle.value(5) == 5


def test_sending_by_path_accepts_the_options_of_with_options():
    handle = tasks().enqueue("tests.jobs.tasks.noop", queue_name="emails", priority=7, unique_key="k")

    row = Task.objects.get(pk=handle.id)
    assert (row.queue_name, row.priority, row.unique_key) == ("emails", 7, "k")
    assert tasks().enqueue("tests.jobs.tasks.noop", unique_key="k").replayed


@pytest.mark.once
@pytest.mark.parametrize(
    "path",
    [
        "os.system",
        "antigravity.fly",
        "tests.jobs.tasks.not_a_task",
        "tests.jobs.tasks.nothing",
        "tests.jobs.nowhere.noop",
        "horsies_django.workflows.engine_tasks.build",
        "noop",
        "",
        None,
        "..tasks.noop",
    ],
)
def test_a_path_that_is_not_that_of_a_registered_task_is_rejected(path):
    with pytest.raises(ValueError, match="There is no task at"):
        tasks().enqueue(path)

    assert "antigravity" not in sys.modules
    assert not Task.objects.exists()


@pytest.mark.once
@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"args": [1, 2, 3]}, TypeError),
        ({"kwargs": {"c": 1}}, TypeError),
        ({"args": [object()]}, TypeError),
        ({"args": [1], "priority": 1_000}, InvalidTask),
        ({"args": [1], "nonsense": 1}, TypeError),
    ],
)
def test_an_invalid_call_is_rejected_and_not_sent(wrong, error):
    with pytest.raises(error):
        tasks().enqueue("tests.jobs.tasks.add", **wrong)

    assert not Task.objects.exists()


def test_update_changes_the_arguments_of_scheduled_tasks_only(drain):
    waiting, due = jobs.add.schedule(3_600, 1), jobs.add.send(1)

    report = tasks().update(waiting.id, [2], {"b": 5})
    refused = tasks().update(due.id, [2])
    tasks().run(waiting.id)
    drain()

    assert (report.action, report.done) == ("update", 1)
    assert [left.why for left in refused.skipped] == ["it is pending"]
    assert (waiting.value(5), due.value(5)) == (7, 2)
    assert tasks().update(uuid4(), [2]).reasons == {"there is no such task": 1}


@pytest.mark.parametrize("columns", [{"workflow_id": uuid4()}, {"has_inputs": True}])
def test_update_skips_a_task_whose_arguments_come_from_its_workflow(columns):
    waiting = make("scheduled", task_name="tests.jobs.tasks.add", args=[1], **columns)

    report = tasks().update(waiting.pk, [2])

    assert "come from its workflow" in report.skipped[0].why
    assert Task.objects.get().args == [1]


@pytest.mark.once
@pytest.mark.parametrize("wrong", [([], {}), ([1, 2, 3], {}), ([object()], {}), ([1], {"c": 1})])
def test_update_rejects_arguments_that_do_not_fit(wrong):
    waiting = jobs.add.schedule(3_600, 1)

    with pytest.raises((TypeError, ValueError)):
        tasks().update(waiting.id, *wrong)

    assert Task.objects.get().args == [1]
