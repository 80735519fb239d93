"""Rows store a task's own name, and its old names resolve to the same task."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import runpy
import sys
from functools import partial
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.urls import reverse

from horsies_django import Every, TaskStatus, register_task, task
from horsies_django.core.compat import FrameworkTask, InvalidTask, default_task_backend
from horsies_django.core.registry import registry
from horsies_django.db.expressions import NowPlus
from horsies_django.exceptions import NotRegistered, PayloadMismatch
from horsies_django.models import Schedule, Task, WorkflowTask
from horsies_django.ops.inspector import tasks
from horsies_django.schedules.declaration import DeclaredSchedule
from tests.conftest import ROOT, Process
from tests.core.registry import renamed
from tests.core.registry.renamed import gathered, limited, send_it

OLD = ["tests.core.registry.old.send_mail", "mail.send_old", "tests.core.registry.renamed.send_it"]


@pytest.mark.slow
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


@pytest.mark.slow
def test_rows_keys_limits_groups_and_nodes_use_a_tasks_own_name(drain):
    calls = [send_it.send(number=1), limited.send(number=2), gathered.send(number=3), renamed.Mailer.send.send(4)]
    workflow = renamed.workflow().start()

    rows = [Task.objects.get(pk=call.id) for call in calls]
    assert [row.task_name for row in rows] == ["mail.send", "mail.limited", "mail.gathered", "mail.in_a_class"]
    assert (rows[1].unique_key, rows[1].limit_key) == ('mail.limited {"number":2}', "mail.limited")
    assert WorkflowTask.objects.get(workflow=workflow.id).task_name == "mail.send"
    assert gathered.with_options(priority=1).send(number=4).id == calls[2].id  # a copy has the same name
    assert DeclaredSchedule("s", send_it, Every(hours=1)).row("").task_name == "mail.send"
    assert repr(send_it.node()(number=1)) == "<TaskNode: mail.send>"
    gone = Task.objects.create(task_name="gone")
    assert default_task_backend.get_result(str(gone.pk)).task.task_name == "gone"
    gone.delete()
    drain()
    assert [call.value(0) for call in calls] == [["mail.send", 1], 2, 2, 4]
    assert workflow.get(0).ok == ["mail.send", 3]


@pytest.mark.slow
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


# Duplicate names.

HEAD = "from horsies_django import register_task, task\n"
DUP = "@task\ndef dup():\n    return {}\n"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import a module of this text; forget what it registers at the end."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "tasks", dict(registry.tasks))
    monkeypatch.setattr(registry, "_claims", dict(registry._claims))
    made = []

    def run(name, text):
        (tmp_path / f"{name}.py").write_text(HEAD + text)
        importlib.invalidate_caches()
        made.append(name)
        return importlib.reload(sys.modules[name]) if name in sys.modules else importlib.import_module(name)

    yield run
    for name in made:
        sys.modules.pop(name, None)


@pytest.mark.once
@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ("", DUP.format(1) + DUP.format(2), "second.dup"),
        ("@task(name='both')\ndef one(): return 1\n", "\n\n@task(name='both')\ndef one(): return 1\n", "both"),
        ("@task(name='both')\ndef one(): return 1\n", "\n\n@task(aliases=['both'])\ndef other(): ...\n", "both"),
        ("@task(aliases=['both'])\ndef one(): return 1\n", "\n\nregister_task(lambda: 1, name='both')\n", "both"),
        ("", "import django_tasks as f\n" + "@f.task\ndef dup(): return 1\n" * 2, "second.dup"),
    ],
    ids=["a module", "two modules", "a name and an alias", "an alias and a name", "the framework's decorator"],
)
def test_a_name_of_two_tasks_is_an_error_that_names_both_places(load, tmp_path, first, second, name):
    if first:
        load("first", first)

    with pytest.raises(ValueError, match=f"'{name}' is the name of two tasks") as caught:
        load("second", second.replace("django_tasks", FrameworkTask.__module__.partition(".base")[0]))

    places = re.findall(rf"{re.escape(str(tmp_path))}/\w+\.py:\d+", str(caught.value))
    assert len(set(places)) == 2
    assert registry.find_task(name).func() == 1


@pytest.mark.slow
@pytest.mark.once
def test_two_closures_of_one_name_stop_the_start_of_django(tmp_path):
    (tmp_path / "with_clashes.py").write_text(
        HEAD + "for number in range(2):\n    register_task((lambda n: lambda: n)(number), name='mail.made')\n"
    )

    process = Process("check", TEST_MODULES="with_clashes", PYTHONPATH=f"{tmp_path}:{ROOT}")

    assert process.wait() == 1
    assert "'mail.made' is the name of two tasks, with_clashes.<lambda>.<locals>.<lambda> (" in process.output


@pytest.mark.once
def test_a_module_that_is_loaded_again_replaces_its_tasks_with_a_warning_if_they_have_moved(load, caplog):
    def replaced():
        return [record for record in caplog.records if record.getMessage().startswith("task replaced")]

    load("again", DUP.format(1))
    load("again", DUP.format(1))
    del sys.modules["again"]
    load("again", DUP.format(22))
    assert replaced() == []
    load("again", "\n" + DUP.format(333))

    assert registry.find_task("again.dup").func() == 333
    assert [record.levelname for record in replaced()] == ["WARNING"]
    for number in range(2):  # the cells of a notebook
        exec(compile(HEAD + DUP.format(number), f"/tmp/ipykernel_1/{number}.py", "exec"), {"__name__": "__main__"})
    exec(compile(HEAD + DUP.format(7), "<doctest again[0]>", "exec"), vars(sys.modules["again"]).copy())
    assert (registry.find_task("__main__.dup").func(), registry.find_task("again.dup").func()) == (1, 7)
    assert len(replaced()) == 3


# Tasks that workers can't find, and habits from elsewhere.


@pytest.mark.django_db
def test_a_task_in_a_script_is_to_move_into_a_module(load, tmp_path, caplog):
    (tmp_path / "script.py").write_text(HEAD + "@task\ndef job(): ...\njob.send()\n")
    runpy.run_path(str(tmp_path / "script.py"), run_name="__main__")

    assert "name=__main__.job: workers may not know it. Move it from the script into a module" in caplog.text
    with pytest.raises(NotRegistered, match=r"Move it from the script into a module that workers import"):
        registry.find_task("__main__.other")


class Callable:
    def __call__(self): ...
    def method(self): ...


@pytest.mark.once
@pytest.mark.parametrize(
    "function",
    [partial(print, 1), Callable().method, Callable(), Callable, len, 5],
    ids=["partial", "method", "callable", "class", "builtin", "number"],
)
def test_anything_but_a_function_is_to_be_wrapped_in_a_def(function):
    for options in ({}, {"name": "wrapped"}):
        with pytest.raises(InvalidTask, match=r"@task got .*; allowed: a function\. Wrap it in a def\."):
            task(**options)(function)


@pytest.mark.once
def test_habits_from_elsewhere_get_the_name_that_is_used_here():
    for call, message in (
        (lambda: task("urgent_task"), r"the text 'urgent_task'; allowed: .*@task\(name='urgent_task'\)"),
        (lambda: task(queue="mail"), r"unknown option queue; .* queue is queue_name here"),
        (lambda: send_it.with_options(eta=1), r"unknown option eta; .* eta is run_after here"),
        (lambda: send_it.delay(1), r"no attribute 'delay'; delay\(\) is send\(\) here"),
        (lambda: send_it.apply_async(), r"'apply_async'; apply_async\(\) is with_options\(…\)\.send\(\) here"),
    ):
        with pytest.raises((InvalidTask, TypeError, AttributeError), match=message):
            call()
    assert not hasattr(send_it, "other")
