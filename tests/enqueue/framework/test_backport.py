"""Tasks of packages that import the backport, ``django_tasks``, also where Django has the framework itself."""

import django
import pytest

from horsies_django import TaskStatus
from horsies_django.core.compat import task_enqueued
from horsies_django.enqueue.task import HorsiesTask
from horsies_django.models import Task
from horsies_django.testing import assert_enqueued, captured, drain, immediate

django_tasks = pytest.importorskip("django_tasks")

pytestmark = pytest.mark.django_db


@django_tasks.task(priority=3)
def add(a, b):
    return a + b


def test_a_task_of_the_backport_is_one_of_ours():
    assert isinstance(add, HorsiesTask)

    result = add.enqueue(2, b=3)

    assert_enqueued(add, args=[2], kwargs={"b": 3}, count=1)
    assert Task.objects.get(pk=result.id).priority == 3
    assert drain(raise_errors=True).counts == {TaskStatus.COMPLETED: 1}
    assert add.get_result(result.id).return_value == 5
    assert django_tasks.default_task_backend.get_result(result.id).return_value == 5
    assert add.get_result(result.id).status == django_tasks.TaskResultStatus.SUCCESSFUL


def test_a_task_that_another_backend_has_made_before_is_stored_too():
    made_before = django_tasks.base.Task(func=add.func)

    result = made_before.enqueue(2, 3)

    drain(raise_errors=True)
    assert django_tasks.default_task_backend.get_result(result.id).return_value == 5


def test_it_is_captured_and_run_at_once_like_any_other():
    with captured() as calls:
        add.enqueue(2, 3)
    with immediate():
        result = add.enqueue(4, 5)

    assert [call.args for call in calls] == [[2, 3]]
    assert result.return_value == 9


@pytest.mark.skipif(django.VERSION < (6, 0), reason="the backport is the framework there")
def test_only_receivers_of_djangos_own_signals_hear_of_it():
    from django_tasks import signals

    heard = []

    def hear(sender, signal, **kwargs):
        heard.append(signal)

    for signal in (task_enqueued, signals.task_enqueued):
        signal.connect(hear)
    try:
        add.enqueue(2, 3)
    finally:
        for signal in (task_enqueued, signals.task_enqueued):
            signal.disconnect(hear)

    assert heard == [task_enqueued]
