"""Rows store a task's own name, and its old names resolve to the same task."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.urls import reverse

from horsies_django import Every, TaskStatus, register_task, task
from horsies_django.core.compat import InvalidTask, default_task_backend
from horsies_django.core.registry import registry
from horsies_django.db.expressions import NowPlus
from horsies_django.exceptions import PayloadMismatch
from horsies_django.models import Schedule, Task, WorkflowTask
from horsies_django.ops.inspector import tasks
from horsies_django.schedules.declaration import DeclaredSchedule
from tests.conftest import ROOT, Process
from tests.core.registry import renamed
from tests.core.registry.renamed import gathered, limited, send_it

OLD = ["tests.core.registry.old.send_mail", "mail.send_old", "tests.core.registry.renamed.send_it"]


def test_rows_and_schedules_from_before_a_rename_run_the_renamed_function(drain):
    rows = [Task.objects.create(task_name=name, kwargs={"number": 1}) for name in OLD]
    made = Schedule.objects.create(name="s", timing="every:3600", task_name=OLD[0], kwargs={"number": 2})
    Schedule.objects.filter(pk=made.pk).update(next_run_at=NowPlus(-1))
    key = uuid4()
    Task.objects.create(pk=key, task_name=OLD[0], kwargs={"number": 4})

    call_command("horsies_scheduler", "--once", verbosity=0)
    again = send_it.with_options(task_id=key).send(number=4)
    with pytest.raises(PayloadMismatch, match="task_name"):
        limited.with_options(task_id=key, unique=None).send(number=4)
    drain()

    for row in rows:
        row.refresh_from_db()
        assert (row.status, row.result) == (TaskStatus.COMPLETED, {"ok": ["mail.send", 1]})
        assert default_task_backend.get_result(str(row.pk)).task.func is send_it.func
    assert again.replayed
    scheduled = Task.objects.get(schedule_id=made.pk)
    assert (scheduled.task_name, scheduled.result) == ("mail.send", {"ok": ["mail.send", 2]})


def test_rows_keys_limits_groups_and_nodes_use_a_tasks_own_name(drain):
    calls = [send_it.send(number=1), limited.send(number=2), gathered.send(number=3), renamed.Mailer.send.send(4)]
    workflow = renamed.workflow().start()

    rows = [Task.objects.get(pk=call.id) for call in calls]
    assert [row.task_name for row in rows] == ["mail.send", "mail.limited", "mail.gathered", "mail.in_a_class"]
    assert (rows[1].unique_key, rows[1].limit_key) == ('mail.limited {"number":2}', "mail.limited")
    assert WorkflowTask.objects.get(workflow=workflow.id).task_name == "mail.send"
    assert gathered.with_options(priority=1).send(number=4).id == calls[2].id  # a copy has the same name
    assert DeclaredSchedule("s", send_it, Every(hours=1)).columns()["task_name"] == "mail.send"
    assert repr(send_it.node()(number=1)) == "<TaskNode: mail.send>"
    gone = Task.objects.create(task_name="gone")
    assert default_task_backend.get_result(str(gone.pk)).task.task_name == "gone"
    gone.delete()
    drain()
    assert [call.value(0) for call in calls] == [["mail.send", 1], 2, 2, 4]
    assert workflow.get(0).ok == ["mail.send", 3]


@pytest.mark.django_db
def test_pages_and_commands_find_a_task_by_each_of_its_names(admin_client, capsys):
    new, old = send_it.send().id, Task.objects.create(task_name=OLD[0]).pk
    other = limited.send(number=1).id

    for name in ["mail.send", *OLD]:
        assert {one.id for one in tasks().list(task=name)} == {new, old}
        call_command("horsies_task", "list", "--task", name, "--json")
        assert {json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()} == {str(new), str(old)}
    page = admin_client.get(reverse("admin:horsies_django_task_changelist"), {"task_name": "mail.send"})
    assert {row.pk for row in page.context["cl"].result_list} == {new, old}
    call_command("horsies_task", "enqueue", "mail.send_old")
    assert Task.objects.exclude(pk__in=[new, old, other]).get().task_name == "mail.send"
    assert send_it.cancel("no such key") is False


# Closures.


@pytest.mark.once
def test_closures_run_under_their_registered_names(drain):
    def handler_of(event):
        def handle(number: int, *, factor=10) -> str:
            return f"{event} {number * factor}"

        return handle

    async def wait(number):
        await asyncio.sleep(0)
        return number

    made = [register_task(handler_of(event), name=f"hooks.{event}", priority=2) for event in ("paid", "sent")]
    made += [register_task(wait, name="hooks.wait"), register_task(lambda number: -number, name="hooks.lambda")]
    handles = [one.send(7) for one in made]
    with pytest.raises(TypeError, match=r"hooks\.paid"):
        made[0].send(7, colour="red")
    for nameless in (wait, lambda number: number):
        with pytest.raises(InvalidTask, match=r"test_task_names.*allowed: with a name, register_task\(…, name=…\)"):
            register_task(nameless)

    drain()

    assert [handle.value(0) for handle in handles] == ["paid 70", "sent 70", 7, -7]
    assert set(Task.objects.values_list("task_name", flat=True)) == {one.task_name for one in made}
    again = register_task(handler_of("refunded"), name="hooks.paid")
    assert registry.find_task("hooks.paid") is again
    assert not [name for name, _ in registry.clashes() if name.startswith("hooks.")]


# Invalid names.


@pytest.mark.once
@pytest.mark.parametrize("name", ["", " ", 7, b"x", "x" * 256, "a\nb", "a\0b", "\ud800", " a", "horsies_django.x"])
def test_the_decorator_rejects_an_invalid_name_or_alias(name):
    for options in ({"name": name}, {"aliases": ["fine", name]}):
        with pytest.raises(ValueError, match=r"allowed: a text such as 'emails\.send', of 1 to 255 printable"):
            task(**options)(renamed.workflow)
    with pytest.raises(ValueError, match="name is"):
        register_task(send_it, name=name)
    with pytest.raises(ValueError, match="aliases is"):
        task(aliases="text")(renamed.workflow)
    assert "fine" not in registry.tasks


CLASHING = """
from horsies_django import register_task, task

@task(name="mail.one")
def one(): ...

@task(name="mail.two", aliases=["mail.one", "with_clashes.unnamed"])
def two(): ...

@task
def unnamed(): ...

@task(name="mail.moved", aliases=["with_clashes.new"])
def moved(): ...

@task(name="mail.new")  # its path was another task's, which has it as an alias
def new(): ...

def make(number):
    return lambda: number

for number in range(2):
    register_task(make(number), name="mail.made")
"""


@pytest.mark.once
def test_the_checks_name_both_tasks_of_a_name_and_their_locations(tmp_path):
    (tmp_path / "with_clashes.py").write_text(CLASHING)

    process = Process("check", TEST_MODULES="with_clashes", PYTHONPATH=f"{tmp_path}:{ROOT}")

    assert process.wait() == 1
    assert process.output.count("(horsies.E009)") == 3
    file = tmp_path / "with_clashes.py"
    for message in (
        f"'mail.one' is claimed by 2 tasks: with_clashes.one ({file}:4), as its name; "
        f"with_clashes.two ({file}:7), as its alias.",
        f"'with_clashes.unnamed' is claimed by 2 tasks: with_clashes.two ({file}:7), as its alias; "
        f"with_clashes.unnamed ({file}:10), as its name.",
        f"'mail.made' is claimed by 2 tasks: with_clashes.make.<lambda> ({file}:20), as its name; ",
    ):
        assert message in process.output
    assert "with_clashes.new'" not in process.output
