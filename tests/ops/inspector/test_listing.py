"""What the inspector finds, and what it tells of it."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django.db.expressions import NowPlus
from horsies_django.models import Heartbeat, Task
from horsies_django.ops.inspector import State, tasks
from horsies_django.ops.keyset import scan
from tests.enqueue.grouping import jobs as gathering
from tests.jobs import tasks as jobs
from tests.ops.inspector.factories import COLUMNS, make, one_of_each, some

pytestmark = pytest.mark.django_db(transaction=True)


def ids(listed):
    return [task.id for task in listed]


@pytest.mark.parametrize("state", list(State))
def test_each_task_is_in_exactly_one_state(state):
    made = one_of_each()

    (found,) = tasks().list(status=state)

    assert found.id == made[state].pk
    assert found.state is state


def test_a_retry_or_a_group_that_is_due_is_pending():
    retry = make("retrying", enqueued_at=NowPlus(-5), next_retry_at=NowPlus(-5))
    group = make("aggregating", enqueued_at=NowPlus(-5))

    assert ids(tasks().list(status="pending")) == [group.pk, retry.pk]
    assert tasks().list(status=["retrying", "aggregating", "scheduled"]) == []


@pytest.mark.once
@pytest.mark.parametrize(
    ("word", "states"), [("archived", ["failed"]), ("active", ["claimed", "running"]), ("retry", ["retrying"])]
)
def test_asynqs_words_are_taken_too(word, states):
    made = one_of_each()

    assert ids(tasks().list(status=word)) == sorted((made[state].pk for state in states), reverse=True)


def test_a_group_can_be_looked_into_and_what_is_sensitive_in_its_calls_is_masked():
    handle = gathering.mail.send(customer_id=7, text="open")
    gathering.mail.send(customer_id=7, text="again", password="secret")

    (listed,) = tasks().list(status="aggregating")
    shown = tasks().show(handle.id)

    assert (listed.item_count, listed.group_key) == (2, "customer-7")
    assert [call["text"] for call in shown.items] == ["open", "again"]
    assert "secret" not in str(shown.as_json())


def test_what_is_due_and_not_in_line_yet_is_pending():
    late = make("scheduled", enqueued_at=NowPlus(-5))

    assert ids(tasks().list(status="pending")) == [late.pk]


@pytest.mark.parametrize(
    "states", [["scheduled", "pending"], ["failed", "expired"], ["running", "failed"], ["pending", "claimed"]]
)
def test_several_states_are_found_together_the_newest_first(states):
    made = one_of_each()

    found = ids(tasks().list(status=states))

    assert found == sorted((made[state].pk for state in states), reverse=True)


def test_a_page_has_thirty_and_the_next_begins_after_its_last():
    made = some(70, "failed")[::-1]

    first = tasks().list(status="failed")
    second = tasks().list(status="failed", after=first[-1].id)
    third = tasks().list(status="failed", after=str(second[-1].id))

    assert ids(first) == made[:30]
    assert ids(second) == made[30:60]
    assert ids(third) == made[60:]
    assert tasks().list(after=third[-1].id) == []


def test_queue_task_and_age_narrow_it_together():
    old = make("pending", queue_name="emails", sent_at=NowPlus(-7_200))
    make("pending", queue_name="emails")
    make("pending", queue_name="emails", sent_at=NowPlus(-7_200), task_name="other.task")
    make("pending", sent_at=NowPlus(-7_200))
    wanted = {"queue": "emails", "task": "tests.jobs.tasks.noop"}

    assert ids(tasks().list(**wanted, older_than="1h")) == [old.pk]
    assert ids(tasks().list(**wanted, older_than=timedelta(hours=1), status="pending")) == [old.pk]
    assert len(tasks().list(**wanted)) == 2


def test_an_old_task_with_an_id_of_its_own_is_found_by_its_age():
    old = make("failed", id=uuid4(), sent_at=NowPlus(-7_200))

    assert ids(tasks().list(older_than=3_600)) == [old.pk]


def test_few_rows_are_found_far_down_a_table(monkeypatch):
    monkeypatch.setattr(scan, "CHUNKS", (5, 20))
    monkeypatch.setattr(scan, "MAX_INDEX_ROWS", 20)
    rare = some(2, "completed", queue_name="rare")
    some(90, "completed")

    with CaptureQueriesContext(connection) as captured:
        assert ids(tasks().list(queue="rare")) == rare[::-1]

    assert all("COUNT(" not in query["sql"] for query in captured)


def test_what_a_silent_worker_holds_is_orphaned():
    silent = make("running", started_at=NowPlus(-9_000))
    heard = make("running", started_at=NowPlus(-9_000))
    Heartbeat.objects.create(task_id=heard.pk, role="runner", sender_id="w", hostname="h", pid=1)
    ahead = make("claimed", claimed_at=NowPlus(-9_000))
    make("failed")

    assert {task.id for task in tasks().list() if task.is_orphaned} == {silent.pk, ahead.pk}
    assert tasks().show(silent.pk).is_orphaned
    assert not tasks().show(heard.pk).is_orphaned


def test_a_page_costs_the_same_however_large_what_its_tasks_carry():
    Task.objects.create(task_name="tests.jobs.tasks.echo", args=["x" * 100_000])
    some(29, "pending")

    with CaptureQueriesContext(connection) as captured:
        page = tasks().list()

    assert len(page) == 30
    assert max(len(task.call) for task in page) < 100
    assert len(captured) <= 3


def test_what_the_admin_masks_is_masked_here():
    handle = jobs.echo.send("open", password="secret", deep=[{"api_key": "secret"}])

    (listed,) = tasks().list()
    shown = tasks().show(handle.id)

    for text in (listed.call, str(listed.as_json()), str(shown.as_json()), str(shown.carried), repr(shown)):
        assert "secret" not in text
        assert "open" in text


def test_showing_tells_what_became_of_each_attempt(drain):
    handle = jobs.fail.send("no luck")
    drain()

    shown = tasks().show(handle.id)

    assert shown.state is State.FAILED
    assert [attempt["outcome"] for attempt in shown.attempts] == ["FAILED"]
    assert shown.carried["result"]["err"]["message"] == "no luck"
    assert "ValueError" in shown.traceback
    assert shown.why == ()
    assert shown.as_json()["state"] == "failed"


def test_showing_tells_why_a_task_waits():
    handle = jobs.add.schedule(3_600, 1)

    assert "scheduled" in tasks().show(str(handle.id)).why[0]


def test_what_is_not_there_is_not_shown():
    assert tasks().show(uuid4()) is None


def test_one_backend_sees_its_own_tasks_only():
    make("failed", backend="other")
    mine = make("failed")

    assert ids(tasks("default").list()) == [mine.pk]
    assert len(tasks().list()) == 2


@pytest.mark.once
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"status": "dead"}, "allowed: scheduled, aggregating, pending"),
        ({"status": []}, "status is"),
        ({"limit": 0}, "limit is 0"),
        ({"limit": "3"}, "limit is '3'"),
        ({"older_than": "soon"}, "older_than is 'soon'"),
        ({"after": "nonsense"}, "after is 'nonsense'"),
        ({"queue": ""}, "queue is ''"),
        ({"task": "a\0"}, "task is"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(wrong, said):
    with pytest.raises(ValueError, match=said):
        tasks().list(**wrong)


@pytest.mark.once
def test_a_backend_that_is_none_is_refused():
    with pytest.raises(ValueError, match="HorsiesBackend"):
        tasks("nonsense")


@pytest.mark.once
def test_every_state_has_its_columns_in_these_tests():
    assert set(COLUMNS) == set(State)
