"""send_many() of a unique task."""

import uuid

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django import TaskStatus, Unique
from horsies_django.models import Task
from tests.enqueue.dedupe import jobs

pytestmark = pytest.mark.django_db

SKIP = jobs.note.with_options(unique=Unique(by=("name",)))


@pytest.mark.once
@pytest.mark.parametrize("options", [{"task_id": uuid.UUID(int=7)}, {"unique_key": "k"}])
def test_send_many_refuses_an_option_for_one_call_and_sends_nothing(options):
    job = SKIP.with_options(**options)

    with pytest.raises(ValueError, match=f"^send_many.. can't give '.*' to every call: {next(iter(options))} is for"):
        job.send_many([{"name": "a"}, {"name": "b"}])

    assert Task.objects.count() == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_send_many_finds_duplicates_across_its_chunks():
    names = [f"n{number % 10_500:05}" for number in range(10_600)][::-1]

    handles = SKIP.send_many({"name": name} for name in names)

    assert [handle.replayed for handle in handles] == [False] * 10_500 + [True] * 100
    assert {handle.id for handle in handles} == set(Task.objects.values_list("pk", flat=True))
    assert list(Task.objects.order_by("pk").values_list("kwargs__name", flat=True)) == names[:10_500]


def test_send_many_keeps_the_values_and_the_order_of_its_calls():
    values = [2.5, 1e22, -0.0, 10**17, "ä\u2028", [1, {"b": None}], {"7": True}]
    job = jobs.anything.with_options(unique=Unique(on_conflict="replace"))

    handles = job.send_many(
        {"name": f"n{position}", "value": value} for position, value in reversed(list(enumerate(values)))
    )

    kwargs = [Task.objects.get(pk=handle.id).kwargs for handle in handles]
    assert [call["value"] for call in kwargs] == values[::-1]
    assert [handle.id for handle in handles] == sorted(handle.id for handle in handles)


def test_send_many_replaces_ten_tasks_with_one_insert():
    job = jobs.note.with_options(unique=Unique.debounce(60, by=("name",)))
    first = job.send_many({"name": f"n{number}"} for number in range(10))

    with CaptureQueriesContext(connection) as queries:
        second = job.send_many({"name": f"n{number}", "text": "new"} for number in reversed(range(10)))

    assert [handle.id for handle in second] == [handle.id for handle in first][::-1]
    assert set(Task.objects.values_list("kwargs__text", flat=True)) == {"new"}
    assert sum(query["sql"].startswith("INSERT") for query in queries) == 1


def test_send_many_creates_a_new_task_if_the_one_to_replace_is_claimed():
    job = jobs.note.with_options(unique=Unique.debounce(60, by=("name",)))
    claimed, pending = job.send_many([{"name": "a"}, {"name": "b"}])
    Task.objects.filter(pk=claimed.id).update(status=TaskStatus.CLAIMED)

    handles = job.send_many({"name": name, "text": str(position)} for position, name in enumerate("baac"))

    assert [handle.replayed for handle in handles] == [True, False, True, False]
    assert (handles[0].id, handles[1].id) == (pending.id, handles[2].id)
    assert Task.objects.get(pk=handles[2].id).kwargs["text"] == "2"
