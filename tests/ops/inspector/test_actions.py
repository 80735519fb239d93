"""Actions of the inspector, and their reports of the tasks that they leave alone."""

from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django import Workflow
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Task, TaskAttempt
from horsies_django.ops.inspector import State, tasks
from horsies_django.ops.inspector.actions import CANCEL, CANCEL_RUNNING, DELETE, RETRY, RUN, move_action
from tests.enqueue.grouping import jobs as gathering
from tests.jobs import tasks as jobs
from tests.ops.inspector.factories import COLUMNS, make, one_of_each, some

pytestmark = pytest.mark.django_db(transaction=True)

#: The action of each action, and the state that it gives to a task; None: it deletes the row.
BECOMES = {
    "run": (RUN, "PENDING"),
    "cancel": (CANCEL, "CANCELLED"),
    "cancel running": (CANCEL_RUNNING, "CANCELLED"),
    "retry": (RETRY, "PENDING"),
    "move": (move_action("emails", None), "PENDING"),
    "delete": (DELETE, None),
}


def status(task):
    return Task.objects.filter(pk=task.pk).values_list("status", flat=True).first()


@pytest.mark.parametrize("name", BECOMES)
def test_an_action_changes_tasks_in_its_states_and_reports_the_others(name):
    action, becomes = BECOMES[name]
    made = one_of_each()
    others = {state: task for state, task in made.items() if state not in action.states}

    report = tasks().with_ids([task.pk for task in made.values()]).apply(action)

    assert (report.action, report.done, report.left) == (action.name, len(made) - len(others), len(others))
    assert {left.id: (left.state, left.why) for left in report.skipped} == {
        task.pk: (state, f"it is {state}") for state, task in others.items()
    }
    assert {status(made[state]) for state in action.states} == {becomes}
    assert all(status(task) == task.status for task in others.values())


@pytest.mark.parametrize("name", BECOMES)
def test_an_action_with_a_filter_changes_all_tasks_in_its_states_only(name):
    action, becomes = BECOMES[name]
    made = {state: some(3, state) for state in COLUMNS}

    report = tasks().matching(status=action.states).apply(action)

    assert (report.done, report.left) == (3 * len(action.states), 0)
    done = [key for state in action.states for key in made[state]]
    found = set(Task.objects.filter(pk__in=done).values_list("status", flat=True))
    assert found == ({becomes} if becomes else set())
    for state in set(COLUMNS) - action.states:
        assert Task.objects.filter(pk__in=made[state], status=COLUMNS[state].get("status", "PENDING")).count() == 3


def test_an_action_without_states_uses_its_default_states():
    one_of_each()

    assert tasks().matching().run().done == 3
    assert tasks().matching().delete().done == 4
    assert {task.state for task in tasks().list()} == {State.PENDING, State.AWAITING, State.CLAIMED, State.RUNNING}


def test_a_dry_run_changes_nothing():
    one_of_each()
    before = list(Task.objects.order_by("pk").values())

    with CaptureQueriesContext(connection) as captured:
        reports = [tasks().matching(status=action.states).apply(action, dry_run=True) for action, _ in BECOMES.values()]

    assert [report.done for report in reports] == [len(action.states) for action, _ in BECOMES.values()]
    assert all(report.is_dry for report in reports)
    assert list(Task.objects.order_by("pk").values()) == before
    assert not [query for query in captured if not query["sql"].startswith(("SELECT", "WITH"))]


def test_a_limit_caps_the_number_of_tasks_acted_on():
    made = some(20, "failed")

    report = tasks().matching(status="failed").apply(RETRY, limit=7)

    assert (report.done, report.left) == (7, 0)
    assert set(Task.objects.filter(status="PENDING").values_list("pk", flat=True)) == set(made[-7:])


def test_an_action_on_several_ids_reports_each_skipped_task():
    waiting, running, gone = make("scheduled"), make("running"), uuid4()

    report = tasks().run([waiting.pk, str(running.pk)], gone, str(waiting.pk))

    assert report.done == 1
    assert [(left.id, left.state, left.why) for left in report.skipped] == [
        (running.pk, State.RUNNING, "it is running"),
        (gone, None, "there is no such task"),
    ]
    assert report.reasons == {"it is running": 1, "there is no such task": 1}
    assert not report.is_complete


@pytest.mark.parametrize("wrong", ["nonsense", 7, None, ""])
def test_an_action_with_an_invalid_id_changes_nothing(wrong):
    waiting = make("scheduled")

    with pytest.raises((ValueError, TypeError)):
        tasks().cancel(waiting.pk, wrong)

    assert status(waiting) == "PENDING"


def test_run_makes_a_task_due_and_a_retry_keeps_its_attempts(drain):
    scheduled = jobs.add.schedule(3_600, 1)
    retrying = make("retrying")

    assert tasks().run(scheduled.id, retrying.pk).done == 2
    drain()

    assert scheduled.status() == "COMPLETED"
    assert Task.objects.values_list("status", "attempt").get(pk=retrying.pk) == ("COMPLETED", 2)


def test_run_skips_a_due_task_and_a_task_past_its_deadline():
    due = make("retrying", enqueued_at=NowPlus(-1))
    late = make("scheduled", good_until=NowPlus(-1))

    report = tasks().run(due.pk, late.pk)

    assert [left.why for left in report.skipped] == ["it is pending", "its good_until has passed"]


def test_run_skips_a_step_of_a_workflow():
    step = make("scheduled", task_name="horsies_django.workflows.engine_tasks.wake")

    assert "step of a workflow" in tasks().run(step.pk).skipped[0].why


def test_running_an_open_group_closes_it_to_further_calls(drain):
    first = gathering.mail.send(customer_id=1, text="x")

    assert tasks().run(first.id).done == 1
    second = gathering.mail.send(customer_id=1, text="y")
    drain()

    assert first.value(5) == [{"customer_id": 1, "text": "x"}]
    assert second.id != first.id
    assert tasks().matching(status="aggregating").delete().done == 1


def test_retry_skips_a_task_whose_unique_key_another_task_has():
    dead = make("failed", unique_key="k")
    make("pending", unique_key="k")

    report = tasks().retry(dead.pk)
    many = tasks().matching(status="failed").retry()

    assert (report.done, report.left) == (many.done, many.left) == (0, 1)
    assert "unique key" in report.skipped[0].why
    assert [left.id for left in many.skipped] == [dead.pk]


def test_deleting_a_waiting_task_frees_its_unique_key():
    waiting = jobs.add.with_options(unique_key="k").schedule(3_600, 1)

    assert tasks().delete(waiting.id).done == 1

    assert waiting.status() is None
    assert not jobs.add.with_options(unique_key="k").send(1).replayed


def test_deleting_a_task_deletes_its_attempts(drain):
    handle = jobs.fail.send()
    drain()

    assert tasks().matching(task="tests.jobs.tasks.fail").delete().done == 1

    assert not TaskAttempt.objects.filter(task_id=handle.id).exists()


def test_delete_without_states_skips_waiting_tasks():
    waiting = make("pending")
    make("completed")

    assert tasks().matching().delete().done == 1
    assert tasks().matching(status=["pending", "completed"]).delete().done == 1
    assert status(waiting) is None


@pytest.mark.slow
def test_delete_skips_the_tasks_of_a_running_workflow(drain):
    first = jobs.noop.node(node_id="first")()
    handle = Workflow("deleted", [first, jobs.add.node(node_id="then", waits_for=[first])(a=1)]).start()
    waiting = Task.objects.get()

    report = tasks().delete(waiting.pk)
    drain(once=True)
    ended = tasks().delete(waiting.pk)

    assert "node of a workflow" in report.skipped[0].why
    assert "its workflow" in ended.skipped[0].why
    drain()
    assert handle.get(5).is_ok()
    assert tasks().matching().delete().left == 0


def test_cancelling_a_node_ends_its_workflow():
    handle = Workflow("cancelled", [jobs.noop.node()()]).start()

    assert tasks().matching(status="pending").cancel().done == 1

    assert handle.status() == "FAILED"


def test_move_sets_the_queue_or_the_priority():
    task = make("scheduled")

    tasks().move(task.pk, queue="emails")
    tasks().matching(queue="emails").move(priority=9)

    task.refresh_from_db()
    assert (task.queue_name, task.priority) == ("emails", 9)


@pytest.mark.once
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "needs queue"),
        ({"priority": 101}, "-100 to 100"),
        ({"queue": ""}, "1 to 100"),
        ({"priority": True}, "whole"),
    ],
)
def test_move_rejects_an_invalid_queue_or_priority(wrong, message):
    with pytest.raises(ValueError, match=message):
        tasks().matching().move(**wrong)


def test_move_skips_a_task_whose_backend_lacks_the_queue(settings):
    one = {"BACKEND": "horsies_django.backend.HorsiesBackend", "OPTIONS": {}}
    settings.TASKS = {"default": {**one, "QUEUES": []}, "small": {**one, "QUEUES": ["only"]}}
    task = make("pending", backend="small")

    report = tasks().move(task.pk, queue="emails")

    assert "no queue 'emails'" in report.skipped[0].why


@pytest.mark.once
def test_an_action_rejects_states_that_it_does_not_take():
    with pytest.raises(ValueError, match="run takes aggregating, retrying, scheduled"):
        tasks().matching(status="completed").run()


@pytest.mark.slow
def test_an_action_skips_tasks_sent_after_it_began():
    some(600, "scheduled")
    steps = tasks().matching(status="scheduled").apply_in_batches(CANCEL)
    next(steps)
    late = make("scheduled")

    *_, report = steps

    assert report.done == 600
    assert status(late) == "PENDING"


@pytest.mark.slow
def test_an_action_skips_tasks_that_changed_before_their_batch():
    made = some(600, "scheduled")
    steps = tasks().matching(status="scheduled").apply_in_batches(CANCEL)
    next(steps)
    Task.objects.filter(pk__in=made[:40]).run_now()

    *_, report = steps

    assert (report.done, report.reasons) == (560, {"it changed meanwhile": 40})
    assert {left.id for left in report.skipped} <= set(made[:40])
    assert Task.objects.filter(status="CANCELLED").count() == 560


@pytest.mark.slow
def test_an_action_on_many_tasks_takes_few_statements_and_no_count(monkeypatch):
    some(1_100, "failed")

    with CaptureQueriesContext(connection) as captured:
        assert tasks().matching(status="failed").retry().done == 1_100

    assert len(captured) <= 40, [query["sql"][:90] for query in captured]
    assert not [query for query in captured if "COUNT(" in query["sql"]]
