"""One line for each act of an operator, by command or from Python: who, what, to which, to how many."""

import io
import logging
import uuid

import pytest
from django.core.management import call_command
from django.test import Client

from horsies_django import TaskStatus, Workflow, reclaim
from horsies_django.core.operations import acting_as, log_operation, system_user
from horsies_django.core.schedule_enums import DisabledBy
from horsies_django.models import Queue, Schedule, Task, Worker
from horsies_django.ops.inspector import tasks
from horsies_django.schedules.dispatch import cancel_previous
from tests.jobs.tasks import add

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def said(caplog):
    """The lines so far, without who."""
    caplog.set_level(logging.INFO, "horsies_django.operations")

    def found():
        lines = [record.getMessage() for record in caplog.records if record.name == "horsies_django.operations"]
        caplog.clear()
        return lines

    return found


def pending(count, **values):
    return [Task.objects.create(task_name="a.b", queue_name="emails", **values) for _ in range(count)]


def command(*arguments, **options):
    call_command(*arguments, stdout=io.StringIO(), stderr=io.StringIO(), **options)


def test_acts_on_tasks_by_command_say_who_what_which_and_how_many(said):
    rows = pending(3)
    who = f"user={system_user()} via=horsies_task"

    command("horsies_task", "move", str(rows[0].pk), to_queue="default")
    command("horsies_task", "cancel", all=True, yes=True, queue="emails")
    command("horsies_task", "delete", all=True, yes=True, status="cancelled", older_than="0")
    command("horsies_task", "cancel", all=True, dry_run=True)
    command("horsies_task", "list")

    assert said() == [
        f"{who} act=task.move count=1 to_queue=default ids={rows[0].pk}",
        f"{who} act=task.cancel count=2 all=True queue=emails",
        f"{who} act=task.delete count=2 all=True status=cancelled older_than=0s",
    ]


def test_acts_from_python_are_logged_once_however_many_batches_they_take(said):
    rows = pending(25)
    who = f"user={system_user()} via=python"

    tasks().cancel(row.pk for row in rows[:22])
    tasks().retry(rows[0].pk, uuid.uuid4())
    handle = tasks().enqueue("tests.jobs.tasks.add", [1, 2])
    reclaim("1h")

    first, *others = said()
    assert first.startswith(f"{who} act=task.cancel count=22 ids={rows[0].pk},")
    assert first.endswith(",+2")
    assert others[0].startswith(f"{who} act=task.retry count=1 left=1 ids=")
    assert others[1:] == [
        f"{who} act=task.enqueue count=1 task=tests.jobs.tasks.add ids={handle.id}",
        f"{who} act=task.reclaim count=0 older_than=3600s backend=default",
    ]


def test_acts_by_handles_are_logged_and_those_of_the_engine_itself_are_not(said):
    handle, flow = add.send(1, 2), Workflow("sum", [add.node()(a=1)]).start()
    add.with_options(unique_key="one").send(1, 2)
    run = Schedule.objects.create(name="flow", timing="every:60", workflow_name="w", last_workflow_id=flow.id)
    said()

    assert [handle.cancel(), handle.cancel(), handle.retry()] == [True, False, True]
    assert add.cancel("one")
    assert flow.pause()
    assert flow.resume()
    assert flow.cancel()
    assert flow.retry("sum:0")
    lines = said()
    cancel_previous(run)

    who, task, workflow = f"user={system_user()} via=python", f"ids={handle.id}", f"ids={flow.id}"
    assert lines == [
        f"{who} act=task.cancel count=1 {task}",
        f"{who} act=task.cancel count=0 {task}",
        f"{who} act=task.retry count=1 {task}",
        f"{who} act=task.cancel count=1 task=tests.jobs.tasks.add",
        f"{who} act=workflow.pause count=1 {workflow}",
        f"{who} act=workflow.resume count=1 {workflow}",
        f"{who} act=workflow.cancel count=1 {workflow}",
        f"{who} act=workflow.retry count=1 {workflow} node=sum:0",
    ]
    assert not said()


def test_an_act_that_breaks_off_is_logged_with_what_it_did(said):
    pending(3)
    steps = tasks().with_ids([row.pk for row in Task.objects.all()]).apply_in_batches(_cancel())
    next(steps)
    steps.close()

    (line,) = said()
    assert "act=task.cancel count=1 " in line
    assert Task.objects.filter(status=TaskStatus.CANCELLED).count() == 1


def _cancel():
    from horsies_django.ops.inspector.actions import CANCEL

    return CANCEL


def test_acts_on_queues_and_pruning_are_logged(said):
    who = f"user={system_user()}"
    command("horsies_queue", "pause", "emails")
    Queue.objects.named("emails").resume()
    command("horsies_queue", "set", "emails", max_concurrency="5", rate_limit="100/m")
    command("horsies_prune", older_than="7d", status="failed")
    command("horsies_prune", dry_run=True)

    assert said() == [
        f"{who} via=horsies_queue act=queue.pause count=1 queue=emails",
        f"{who} via=python act=queue.resume count=1 queue=emails",
        f"{who} via=horsies_queue act=queue.set count=1 queue=emails max_concurrency=5 rate_limit=100/m",
        f"{who} via=horsies_prune act=prune count=0 workflows=0 heartbeats=0 older_than=7d status=failed",
    ]


def test_acts_on_schedules_and_workers_are_logged_with_what_they_were_done_to(said):
    Schedule.objects.create(name="daily", timing="every:60", task_name="tests.jobs.tasks.noop", enabled=False)
    Worker.objects.create(id="a-1", hostname="a", pid=1)
    Worker.objects.filter(stop_requested_at__isnull=True).request_stop()
    daily = Schedule.objects.filter(name="daily")

    assert [daily.filter(enabled=False).enable(), len(daily.run_now()), daily.filter(enabled=True).disable()] == [
        1,
        1,
        1,
    ]
    assert daily.disable(by=DisabledBy.CODE) == 0

    assert [line.split(" via=python ")[1] for line in said()] == [
        "act=worker.stop count=1 worker=a-1",
        "act=schedule.enable count=1 schedule=daily",
        "act=schedule.run count=1 schedule=daily",
        "act=schedule.disable count=1 schedule=daily",
    ]


def test_an_act_of_the_admin_is_that_of_the_sites_user_and_not_of_the_web_servers(said, admin_user):
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
    assert said() == ["user=admin via=admin act=queue.pause count=1 queue=emails"]


def test_a_value_can_not_forge_a_fact_or_a_line(said):
    with acting_as("eve act=none\nuser=root", "python"):
        log_operation("task.cancel", 1, task="a b\x1b[2J", queue='q" count=2', ids=["a b", "c"])

    (line,) = said()
    assert line == (
        'user="eve act=none\\nuser=root" via=python act=task.cancel count=1 task="a b\\u001b[2J" '
        'queue="q\\" count=2" ids="a b,c"'
    )
