"""Tasks as the inspector lists and shows them."""

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


def test_a_due_retry_and_a_due_group_are_pending():
    retry = make("retrying", enqueued_at=NowPlus(-5), next_retry_at=NowPlus(-5))
    group = make("aggregating", enqueued_at=NowPlus(-5))

    assert ids(tasks().list(status="pending")) == [group.pk, retry.pk]
    assert tasks().list(status=["retrying", "aggregating", "scheduled"]) == []


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "states"), [("archived", ["failed"]), ("active", ["claimed", "running"]), ("retry", ["retrying"])]
)
def test_list_accepts_the_state_names_of_asynq(name, states):
    made = one_of_each()

    assert ids(tasks().list(status=name)) == sorted((made[state].pk for state in states), reverse=True)


def test_an_open_group_shows_its_calls_with_sensitive_values_masked():
    handle = gathering.mail.send(customer_id=7, text="open")
    gathering.mail.send(customer_id=7, text="again", password="secret")

    (listed,) = tasks().list(status="aggregating")
    shown = tasks().show(handle.id)

    assert (listed.item_count, listed.group_key) == (2, "customer-7")
    assert [call["text"] for call in shown.items] == ["open", "again"]
    assert "secret" not in str(shown.as_json())


def test_a_due_task_that_is_still_deferred_is_pending():
    late = make("scheduled", enqueued_at=NowPlus(-5))

    assert ids(tasks().list(status="pending")) == [late.pk]


@pytest.mark.parametrize(
    "states", [["scheduled", "pending"], ["failed", "expired"], ["running", "failed"], ["pending", "claimed"]]
)
def test_tasks_of_several_states_are_listed_newest_first(states):
    made = one_of_each()

    found = ids(tasks().list(status=states))

    assert found == sorted((made[state].pk for state in states), reverse=True)


def test_a_page_has_thirty_tasks_and_the_next_starts_after_its_last():
    made = some(70, "failed")[::-1]

    first = tasks().list(status="failed")
    second = tasks().list(status="failed", after=first[-1].id)
    third = tasks().list(status="failed", after=str(second[-1].id))

    assert ids(first) == made[:30]
    assert ids(second) == made[30:60]
    assert ids(third) == made[60:]
    assert tasks().list(after=third[-1].id) == []


def test_filters_by_queue_task_and_age_combine():
    old = make("pending", queue_name="emails", sent_at=NowPlus(-7_200))
    make("pending", queue_name="emails")
    make("pending", queue_name="emails", sent_at=NowPlus(-7_200), task_name="other.task")
    make("pending", sent_at=NowPlus(-7_200))
    wanted = {"queue": "emails", "task": "tests.jobs.tasks.noop"}

    assert ids(tasks().list(**wanted, older_than="1h")) == [old.pk]
    assert ids(tasks().list(**wanted, older_than=timedelta(hours=1), status="pending")) == [old.pk]
    assert len(tasks().list(**wanted)) == 2


def test_the_filter_by_error_finds_failed_and_retrying_tasks_of_its_group():
    failed, retrying = (make(state, fingerprint="a" * 12, error_code="X") for state in ("failed", "retrying"))
    make("failed", fingerprint="b" * 12, error_code="X")

    assert ids(tasks().list(error="a" * 12)) == [retrying.pk, failed.pk]
    assert ids(tasks().list(error="a" * 12, status="failed")) == [failed.pk]
    assert tasks().matching(error="a" * 12, status="retrying").run(dry_run=True).done == 1


def test_an_old_task_with_a_custom_id_is_found_by_its_age():
    old = make("failed", id=uuid4(), sent_at=NowPlus(-7_200))

    assert ids(tasks().list(older_than=3_600)) == [old.pk]


def test_rare_tasks_are_found_far_down_a_table(monkeypatch):
    monkeypatch.setattr(scan, "CHUNKS", (5, 20))
    monkeypatch.setattr(scan, "MAX_INDEX_ROWS", 20)
    rare = some(2, "completed", queue_name="rare")
    some(90, "completed")

    with CaptureQueriesContext(connection) as captured:
        assert ids(tasks().list(queue="rare")) == rare[::-1]

    assert all("COUNT(" not in query["sql"] for query in captured)


def test_a_task_held_by_a_silent_worker_is_orphaned():
    silent = make("running", started_at=NowPlus(-9_000))
    alive = make("running", started_at=NowPlus(-9_000))
    Heartbeat.objects.create(task_id=alive.pk, role="runner", sender_id="w", hostname="h", pid=1)
    ahead = make("claimed", claimed_at=NowPlus(-9_000))
    make("failed")

    assert {task.id for task in tasks().list() if task.is_orphaned} == {silent.pk, ahead.pk}
    assert tasks().show(silent.pk).is_orphaned
    assert not tasks().show(alive.pk).is_orphaned


def test_the_cost_of_a_page_does_not_depend_on_the_size_of_payloads():
    Task.objects.create(task_name="tests.jobs.tasks.echo", args=["x" * 100_000])
    some(29, "pending")

    with CaptureQueriesContext(connection) as captured:
        page = tasks().list()

    assert len(page) == 30
    assert max(len(task.call) for task in page) < 100
    assert len(captured) <= 3


def test_list_and_show_mask_sensitive_arguments():
    handle = jobs.echo.send("open", password="secret", deep=[{"api_key": "secret"}])

    (listed,) = tasks().list()
    shown = tasks().show(handle.id)

    for text in (listed.call, str(listed.as_json()), str(shown.as_json()), str(shown.payload), repr(shown)):
        assert "secret" not in text
        assert "open" in text


def test_show_has_the_outcome_of_each_attempt(drain):
    handle = jobs.fail.send("no luck")
    drain()

    shown = tasks().show(handle.id)

    assert shown.state is State.FAILED
    assert [attempt["outcome"] for attempt in shown.attempts] == ["FAILED"]
    assert shown.payload["result"]["err"]["message"] == "no luck"
    assert "ValueError" in shown.traceback
    assert shown.why == ()
    assert shown.as_json()["state"] == "failed"


def test_show_explains_why_a_task_waits():
    handle = jobs.add.schedule(3_600, 1)

    assert "scheduled" in tasks().show(str(handle.id)).why[0]


def test_show_returns_none_for_a_missing_task():
    assert tasks().show(uuid4()) is None


def test_the_inspector_of_a_backend_lists_only_its_tasks():
    make("failed", backend="other")
    mine = make("failed")

    assert ids(tasks("default").list()) == [mine.pk]
    assert len(tasks().list()) == 2


@pytest.mark.once
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"status": "dead"}, "allowed: scheduled, aggregating, pending"),
        ({"status": []}, "status is"),
        ({"limit": 0}, "limit is 0"),
        ({"limit": "3"}, "limit is '3'"),
        ({"older_than": "soon"}, "older_than is 'soon'"),
        ({"after": "nonsense"}, "after is 'nonsense'"),
        ({"queue": ""}, "queue is ''"),
        ({"error": "A" * 12}, "error is 'AAAAAAAAAAAA'"),
        ({"task": "a\0"}, "task is"),
    ],
)
def test_an_invalid_filter_is_named_in_the_error(wrong, message):
    with pytest.raises(ValueError, match=message):
        tasks().list(**wrong)


@pytest.mark.once
def test_an_unknown_backend_is_rejected():
    with pytest.raises(ValueError, match="HorsiesBackend"):
        tasks("nonsense")


@pytest.mark.once
def test_the_factories_of_these_tests_cover_every_state():
    assert set(COLUMNS) == set(State)
