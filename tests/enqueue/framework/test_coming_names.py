"""The names of proposals for Django's own framework."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from django.db import transaction

from horsies_django import TaskStatus, task
from horsies_django.core.compat import task_backends
from horsies_django.models import Task
from horsies_django.testing import assert_enqueued, drain, refute_enqueued, task_context
from tests.jobs import tasks

pytestmark = pytest.mark.django_db


@task(takes_context=True, max_attempts=2, backoff=0, metadata={"seen": 0})
def count_attempts(context) -> int:
    context.metadata["seen"] += 1
    context.save_metadata()
    if context.attempt == 1:
        raise LookupError
    return context.metadata["seen"]


@task(takes_context=True)
def save_no_json(context) -> None:
    context.metadata["when"] = object()
    context.save_metadata()


@task(takes_context=True)
async def asave(context) -> None:
    context.metadata["by"] = "a coroutine"
    await context.asave_metadata()


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_body_changes_its_metadata_for_the_next_attempt_and_for_all_to_see():
    handle = count_attempts.send()

    drain(retries=True)

    assert handle.value(0) == 2
    assert Task.objects.get().metadata == {"seen": 2}
    assert task_backends["default"].supports_metadata


def test_a_coroutine_does_so_too():
    asave.send()

    drain(raise_errors=True)

    assert Task.objects.get().metadata == {"by": "a coroutine"}


def test_metadata_that_is_no_json_is_rejected():
    handle = save_no_json.send()

    drain()

    assert "the metadata" in handle.get(0).err.message
    with pytest.raises(TypeError, match="the metadata"):
        save_no_json.func(task_context(save_no_json))


def test_a_result_is_written_as_json():
    result = tasks.add.enqueue(1, b=2)
    failed = tasks.fail.enqueue("too bad")
    drain()

    for one in (result, failed):
        one.refresh()
    written = json.loads(result.to_json())
    assert (written["id"], written["task"], written["status"]) == (result.id, "tests.jobs.tasks.add", "SUCCESSFUL")
    assert (written["args"], written["kwargs"], written["return_value"], written["attempts"]) == ([1], {"b": 2}, 3, 1)
    assert datetime.fromisoformat(written["finished_at"]).tzinfo == UTC
    written = json.loads(failed.to_json())
    assert "return_value" not in written
    assert "too bad" in written["errors"][0]["traceback"]


def test_a_call_can_wait_for_the_commit_of_other_data(django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        tasks.add.enqueue_on_commit(1, b=2)
        refute_enqueued(tasks.add)

    assert assert_enqueued(tasks.add, args=[1, 2])[0].handle.status() == TaskStatus.PENDING
