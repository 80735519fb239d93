"""Tasks of horsies on the backends that come with the framework, as a project's tests may use them."""

import pytest

from horsies_django import HorsiesTask, task
from horsies_django.core.compat import InvalidTask, TaskResultStatus, default_task_backend
from horsies_django.models import Task
from tests.enqueue.framework import jobs
from tests.enqueue.framework.conftest import backend_path


@pytest.fixture
def immediate(settings):
    """Run tasks as they are enqueued."""
    settings.TASKS = {"default": {"BACKEND": backend_path("Immediate")}}


@pytest.fixture
def dummy(settings):
    """Keep tasks in a list."""
    settings.TASKS = {"default": {"BACKEND": backend_path("Dummy")}}


@pytest.mark.django_db
def test_the_immediate_backend_runs_a_horsies_task_at_once(immediate):
    result = jobs.add.enqueue(1, b=2)

    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
    assert (result.attempts, result.errors) == (1, [])
    assert not Task.objects.exists()


@pytest.mark.django_db
def test_the_context_and_failures_work_with_the_immediate_backend(immediate):
    succeeded, failed = jobs.show_context.enqueue(), jobs.fail.enqueue()

    assert succeeded.return_value["attempt"] == 1
    assert (failed.status, failed.errors[0].exception_class) == (TaskResultStatus.FAILED, jobs.Broken)


@pytest.mark.django_db
def test_the_dummy_backend_keeps_a_horsies_task(dummy):
    result = jobs.with_horsies_options.using(priority=5).enqueue()

    assert (result.status, result.task.priority) == (TaskResultStatus.READY, 5)
    assert default_task_backend.results == [result]
    assert default_task_backend.get_result(result.id) == result
    assert not Task.objects.exists()


def test_a_horsies_task_can_be_made_and_changed_with_the_immediate_backend(immediate):
    job = task(priority=5, max_attempts=3)(jobs.taking_nothing)

    assert type(job) is type(job.using(priority=6)) is HorsiesTask
    assert (job.priority, job.max_attempts) == (5, 3)


def test_the_configured_backend_validates_a_horsies_task(immediate):
    with pytest.raises(InvalidTask, match=r"^Queue 'unknown' is not valid for backend\.$"):
        jobs.add.using(queue_name="unknown")


@pytest.mark.django_db
def test_send_requires_the_horsies_backend(immediate):
    with pytest.raises(InvalidTask, match="HorsiesBackend"):
        jobs.add.send(1)


@pytest.mark.django_db
def test_a_task_follows_a_change_of_backend_in_the_settings(settings):
    horsies_settings = settings.TASKS
    settings.TASKS = {"default": {"BACKEND": backend_path("Immediate")}}
    assert jobs.add.enqueue(1).is_finished

    settings.TASKS = horsies_settings
    result = jobs.add.enqueue(1)

    assert result.status == TaskResultStatus.READY
    assert Task.objects.filter(pk=result.id).exists()


@pytest.mark.django_db
def test_two_backends_can_be_used_side_by_side(settings):
    settings.TASKS = {**settings.TASKS, "now": {"BACKEND": backend_path("Immediate")}}

    later, now = jobs.add.enqueue(1), jobs.add.using(backend="now").enqueue(1)

    assert (later.is_finished, now.is_finished) == (False, True)
    assert (later.backend, now.backend) == ("default", "now")
    assert [str(row.pk) for row in Task.objects.all()] == [later.id]
