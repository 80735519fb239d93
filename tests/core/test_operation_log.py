"""The operations log: one line for each action of an operator, by command, from Python or in the admin."""

import io
import logging
import uuid

import pytest
from django.core.management import call_command
from django.test import Client

from horsies_django import TaskStatus, Workflow, reclaim
from horsies_django.core.operations import acting_as, log_operation
from horsies_django.core.platform import system_user
from horsies_django.models import Queue, Schedule, Task, Worker
from horsies_django.ops.inspector import tasks
from horsies_django.schedules.dispatch import cancel_previous
from tests.jobs.tasks import add

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def take_logged(caplog):
    """Return the lines logged since the last call."""
    caplog.set_level(logging.INFO, "horsies_django.operations")

    def take():
        lines = [record.getMessage() for record in caplog.records if record.name == "horsies_django.operations"]
        caplog.clear()
        return lines

    return take


def pending(count, **values):
    return [Task.objects.create(task_name="a.b", queue_name="emails", **values) for _ in range(count)]


def command(*arguments, **options):
    call_command(*arguments, stdout=io.StringIO(), stderr=io.StringIO(), **options)


@pytest.mark.slow
def test_task_commands_log_the_user_the_action_its_targets_and_its_count(take_logged):
    rows = pending(3)
    actor = f"user={system_user()} via=horsies_task"

    command("horsies_task", "move", str(rows[0].pk), to_queue="default")
    command("horsies_task", "cancel", all=True, yes=True, queue="emails")
    command("horsies_task", "delete", all=True, yes=True, status="cancelled", older_than="0")
    command("horsies_task", "cancel", all=True, dry_run=True)
    command("horsies_task", "list")

    assert take_logged() == [
        f"{actor} act=task.move count=1 to_queue=default ids={rows[0].pk}",
        f"{actor} act=task.cancel count=2 all=True queue=emails",
        f"{actor} act=task.delete count=2 all=True status=cancelled older_than=0s",
    ]


def test_an_action_from_python_is_logged_once_however_many_batches_it_takes(take_logged):
    rows = pending(25)
    actor = f"user={system_user()} via=python"

    tasks().cancel(row.pk for row in rows[:22])
    tasks().retry(rows[0].pk, uuid.uuid4())
    handle = tasks().enqueue("tests.jobs.tasks.add", [1, 2])
    reclaim("1h")

    first, *others = take_logged()
    assert first.startswith(f"{actor} act=task.cancel count=22 ids={rows[0].pk},")
    assert first.endswith(",+2")
    assert others[0].startswith(f"{actor} act=task.retry count=1 left=1 ids=")
    assert others[1:] == [
        f"{actor} act=task.enqueue count=1 task=tests.jobs.tasks.add ids={handle.id}",
        f"{actor} act=task.reclaim count=0 older_than=3600s backend=default",
    ]


@pytest.mark.slow
def test_actions_by_handles_are_logged_but_not_those_of_the_engine(take_logged):
    handle, flow = add.send(1, 2), Workflow("sum", [add.node()(a=1)]).start()
    add.with_options(unique_key="one").send(1, 2)
    run = Schedule.objects.create(name="flow", timing="every:60", workflow_name="w", last_workflow_id=flow.id)
    take_logged()

    assert [handle.cancel(), handle.cancel(), handle.retry()] == [True, False, True]
    assert add.cancel("one")
    assert flow.pause()
    assert flow.resume()
    assert flow.cancel()
    assert flow.retry("sum:0")
    lines = take_logged()
    cancel_previous(run)

    actor, task, workflow = f"user={system_user()} via=python", f"ids={handle.id}", f"ids={flow.id}"
    assert lines == [
        f"{actor} act=task.cancel count=1 {task}",
        f"{actor} act=task.cancel count=0 {task}",
        f"{actor} act=task.retry count=1 {task}",
        f"{actor} act=task.cancel count=1 task=tests.jobs.tasks.add",
        f"{actor} act=workflow.pause count=1 {workflow}",
        f"{actor} act=workflow.resume count=1 {workflow}",
        f"{actor} act=workflow.cancel count=1 {workflow}",
        f"{actor} act=workflow.retry count=1 {workflow} node=sum:0",
    ]
    assert not take_logged()


def test_an_interrupted_action_is_logged_with_the_count_it_reached(take_logged):
    pending(3)
    steps = tasks().with_ids([row.pk for row in Task.objects.all()]).apply_in_batches(_cancel())
    next(steps)
    steps.close()

    (line,) = take_logged()
    assert "act=task.cancel count=1 " in line
    assert Task.objects.filter(status=TaskStatus.CANCELLED).count() == 1


def _cancel():
    from horsies_django.ops.inspector.actions import CANCEL

    return CANCEL


def test_queue_actions_and_pruning_are_logged(take_logged):
    actor = f"user={system_user()}"
    command("horsies_queue", "pause", "emails")
    Queue.objects.named("emails").resume()
    command("horsies_queue", "set", "emails", max_concurrency="5", rate_limit="100/m")
    command("horsies_prune", older_than="7d", status="failed")
    command("horsies_prune", dry_run=True)

    assert take_logged() == [
        f"{actor} via=horsies_queue act=queue.pause count=1 queue=emails",
        f"{actor} via=python act=queue.resume count=1 queue=emails",
        f"{actor} via=horsies_queue act=queue.set count=1 queue=emails max_concurrency=5 rate_limit=100/m",
        f"{actor} via=horsies_prune act=prune count=0 workflows=0 heartbeats=0 older_than=7d status=failed",
    ]


def test_schedule_and_worker_actions_are_logged_with_their_targets(take_logged):
    Schedule.objects.create(name="daily", timing="every:60", task_name="tests.jobs.tasks.noop", enabled=False)
    Worker.objects.create(id="a-1", hostname="a", pid=1)
    Worker.objects.filter(quiet_since__isnull=True).quiet()
    Worker.objects.filter(quiet_since__isnull=False).resume()
    Worker.objects.filter(stop_requested_at__isnull=True).request_stop()
    daily = Schedule.objects.filter(name="daily")

    assert [daily.filter(enabled=False).enable(), len(daily.run_now()), daily.filter(enabled=True).disable()] == [
        1,
        1,
        1,
    ]

    assert [line.split(" via=python ")[1] for line in take_logged()] == [
        "act=worker.quiet count=1 worker=a-1",
        "act=worker.resume count=1 worker=a-1",
        "act=worker.stop count=1 worker=a-1",
        "act=schedule.enable count=1 schedule=daily",
        "act=schedule.run count=1 schedule=daily",
        "act=schedule.disable count=1 schedule=daily",
    ]


def test_an_admin_action_is_logged_with_the_site_user_not_the_system_user(take_logged, admin_user):
    client = Client()
    client.force_login(admin_user)
    queue = Queue.objects.create(name="emails")

    client.post(
        "/admin/horsies_django/queue/",
        {"action": "pause", "_selected_action": [queue.pk], "select_across": "0", "index": "0", "_confirmed": "1"},
        follow=True,
    )

    queue.refresh_from_db()
    assert queue.paused
    assert take_logged() == ["user=admin via=admin act=queue.pause count=1 queue=emails"]


def test_a_logged_value_cannot_forge_a_field_or_a_line(take_logged):
    with acting_as("eve act=none\nuser=root", "python"):
        log_operation("task.cancel", 1, task="a b\x1b[2J", queue='q" count=2', ids=["a b", "c"])

    (line,) = take_logged()
    assert line == (
        'user="eve act=none\\nuser=root" via=python act=task.cancel count=1 task="a b\\u001b[2J" '
        'queue="q\\" count=2" ids="a b,c"'
    )
