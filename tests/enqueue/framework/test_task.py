"""The task that a decorator makes of a function."""

import dataclasses
import pickle
from datetime import timedelta

import django
import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone
from django.utils.module_loading import import_string

from horsies_django import HorsiesTask, task
from horsies_django.backend import HorsiesBackend
from horsies_django.core.compat import (
    BaseTaskBackend,
    FrameworkTask,
    InvalidTask,
    default_task_backend,
    task_backends,
)
from tests.enqueue.framework import jobs

needs_pickling = pytest.mark.skipif(django.VERSION < (6, 1), reason="the framework pickles tasks from Django 6.1 on")


def test_the_decorator_makes_a_framework_task_with_its_defaults():
    job = jobs.add

    assert isinstance(job, HorsiesTask)
    assert isinstance(job, FrameworkTask)
    assert (job.priority, job.queue_name, job.backend) == (0, "default", "default")
    assert (job.run_after, job.takes_context) == (None, False)


def test_the_decorator_takes_the_options_of_the_framework():
    job = jobs.decorated

    assert (job.priority, job.queue_name, job.takes_context) == (7, "emails", True)


def test_djangos_decorator_makes_a_horsies_task():
    bare, with_options = jobs.made_by_django, jobs.made_by_django_with_options

    assert type(bare) is type(with_options) is HorsiesTask
    assert (with_options.priority, with_options.queue_name) == (3, "emails")


@pytest.mark.skipif((6, 0) <= django.VERSION < (6, 1), reason="Django 6.0 forwards no options but its own")
def test_djangos_decorator_forwards_the_options_of_horsies():
    job = jobs.framework_task(max_attempts=4, timeout=20)(jobs.taking_nothing)

    assert (type(job), job.max_attempts, job.timeout) == (HorsiesTask, 4, 20)


def test_a_task_is_named_after_its_function_and_can_be_imported_by_its_path():
    job = jobs.add

    assert job.name == "add"
    assert job.module_path == "tests.enqueue.framework.jobs.add"
    assert import_string(job.module_path) is job


def test_a_task_knows_its_backend():
    backend = jobs.add.get_backend()

    assert isinstance(backend, HorsiesBackend)
    assert backend is task_backends["default"]
    assert backend.alias == "default"


def test_the_backend_supports_every_feature_of_the_framework():
    flags = {name for name in dir(BaseTaskBackend) if name.startswith("supports_")}

    assert {name: getattr(default_task_backend, name) for name in flags} == dict.fromkeys(flags, True)
    assert flags >= {"supports_defer", "supports_async_task", "supports_get_result", "supports_priority"}


def test_the_backend_extends_that_of_the_framework_and_makes_horsies_tasks():
    assert issubclass(HorsiesBackend, BaseTaskBackend)
    assert HorsiesBackend.task_class is HorsiesTask


def test_a_task_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        jobs.add.priority = 5

    assert jobs.add.priority == 0


def test_tasks_with_equal_options_are_equal_and_hashable():
    same, other = jobs.with_horsies_options.using(priority=0), jobs.with_horsies_options.using(priority=1)

    assert same == jobs.with_horsies_options != other
    assert {jobs.with_horsies_options: "found"}[same] == "found"


def test_using_returns_a_changed_copy():
    run_after = timezone.now() + timedelta(hours=1)

    copy = jobs.add.using(priority=5, queue_name="emails", run_after=run_after)

    assert type(copy) is HorsiesTask
    assert (copy.priority, copy.queue_name, copy.run_after, copy.func) == (5, "emails", run_after, jobs.add.func)
    assert (jobs.add.priority, jobs.add.queue_name, jobs.add.run_after) == (0, "default", None)


def test_using_without_options_changes_nothing():
    assert jobs.decorated.using() == jobs.decorated


def test_a_second_using_keeps_the_options_of_the_first():
    copy = jobs.add.using(priority=5).using(queue_name="emails")

    assert (copy.priority, copy.queue_name) == (5, "emails")


def test_using_keeps_the_options_of_horsies():
    copy = jobs.with_horsies_options.using(priority=5)

    for name in ("max_attempts", "timeout", "retention", "metadata", "exception_mapper"):
        assert getattr(copy, name) == getattr(jobs.with_horsies_options, name)
    assert (copy.max_attempts, copy.timeout) == (4, 20)


def test_using_refuses_an_option_unknown_to_the_framework():
    with pytest.raises(TypeError, match="banana"):
        jobs.add.using(banana=1)


def test_using_takes_a_delay_as_run_after():
    copy = jobs.add.using(run_after=timedelta(minutes=5))

    assert copy.run_after == timedelta(minutes=5)


def test_using_can_select_another_backend(settings):
    settings.TASKS = {**settings.TASKS, "other": {**settings.TASKS["default"], "QUEUES": ["default"]}}

    copy = jobs.add.using(backend="other")

    assert copy.get_backend() is task_backends["other"]


def test_the_backend_named_in_using_validates_the_task(settings):
    settings.TASKS = {**settings.TASKS, "other": {**settings.TASKS["default"], "QUEUES": ["default"]}}

    with pytest.raises(InvalidTask, match=r"^Queue 'emails' is not valid for backend\.$"):
        jobs.add.using(backend="other", queue_name="emails")


def test_the_decorator_refuses_run_after():
    with pytest.raises(TypeError, match="run_after"):
        task(run_after=timezone.now())(jobs.taking_nothing)


def test_a_task_can_still_be_called_directly():
    assert jobs.add.func(1, b=2) == jobs.add.call(1, b=2) == 3


@pytest.mark.django_db
def test_call_runs_a_coroutine_to_its_end():
    assert jobs.awrite.call("x") == "x"


@pytest.mark.django_db
def test_acall_runs_functions_and_coroutines():
    async def both():
        return await jobs.add.acall(1, b=2), await jobs.awrite.acall("x")

    assert async_to_sync(both)() == (3, "x")


@needs_pickling
@pytest.mark.parametrize("changes", [{}, {"priority": 5, "queue_name": "emails"}], ids=str)
def test_a_task_keeps_its_options_through_pickling(changes):
    original = jobs.with_horsies_options.using(**changes)

    loaded = pickle.loads(pickle.dumps(original))

    assert type(loaded) is HorsiesTask
    assert loaded == original
    assert loaded.func is original.func
    assert loaded.exception_mapper == {jobs.Broken: "BROKEN"}


@needs_pickling
def test_a_pickled_task_is_validated_when_it_is_loaded(backend_settings):
    pickled = pickle.dumps(jobs.add.using(queue_name="emails"))
    backend_settings(QUEUES=["default"])

    with pytest.raises(InvalidTask, match=r"^Queue 'emails' is not valid for backend\.$"):
        pickle.loads(pickled)


@needs_pickling
@pytest.mark.django_db
def test_a_result_survives_pickling():
    result = jobs.add.enqueue(1, b=2)

    assert pickle.loads(pickle.dumps(result)) == result
