"""Rows, forms and commands resolve registered names only: they import nothing and call nothing else."""

from __future__ import annotations

import logging
import sys
from itertools import count

import pytest
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.management import CommandError, call_command
from django.urls import reverse

from horsies_django import InvalidWorkflow, TaskStatus, register_condition, register_task, register_type
from horsies_django.apps import load_modules
from horsies_django.checks import check_modules
from horsies_django.core.compat import default_task_backend
from horsies_django.exceptions import NotRegistered
from horsies_django.models import Schedule, Task, WorkflowTask
from horsies_django.ops.inspector import tasks
from tests.conftest import ROOT, Process
from tests.core.registry import jobs
from tests.core.registry.jobs import Box, Conditional, Parcel, Shelf
from tests.naming import stable
from tests.workflows.runs import codes, start_and_drain

pytestmark = pytest.mark.once

RICH = {
    "default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": [], "OPTIONS": {"serializer": "rich"}}
}

#: A module with everything that a row may name. Importing it could do anything.
TRAP = """
from dataclasses import dataclass
from horsies_django import WorkflowContext, task

@dataclass
class Thing:
    size: int = 0

@task
def job(value=None):
    return value

def condition(context: WorkflowContext) -> bool:
    return True
"""
_numbers = count()


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """Return the name of a module that can be imported, but that nothing may import."""
    name = f"trap_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(TRAP)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    assert name not in sys.modules


# Rows.


def test_a_worker_never_imports_a_module_that_a_row_names(drain, trap):
    row = Task.objects.create(task_name=f"{trap}.job")

    drain()

    row.refresh_from_db()
    assert (row.status, row.error_code) == (TaskStatus.FAILED, "WORKER_RESOLUTION_ERROR")
    assert "not a registered task" in row.result["err"]["message"]


def test_a_type_tag_in_a_row_imports_and_builds_nothing_unregistered(drain, settings, trap):
    settings.TASKS = RICH
    tag = {"$type": "dataclass", "class": f"{trap}.Thing", "value": {}}
    rows = [
        Task.objects.create(task_name=jobs.identity.module_path, args=[tag], typed_payload=True),
        Task.objects.create(
            task_name=jobs.identity.module_path,
            args=[{**tag, "class": "tests.core.registry.jobs.Shelf.Unknown"}],
            typed_payload=True,
        ),
    ]

    drain()

    for row in rows:
        row.refresh_from_db()
        assert (row.status, row.error_code) == (TaskStatus.FAILED, "WORKER_SERIALIZATION_ERROR")
        assert default_task_backend.get_result(str(row.pk)).args == row.args


@pytest.mark.parametrize("where", ["row", "result"])
def test_type_tags_apply_only_with_the_rich_serializer(drain, settings, where):
    tag = {"$type": "date", "value": "2026-01-01"}
    row = Task.objects.create(task_name=jobs.identity.module_path, args=[tag], typed_payload=True)
    before = settings.TASKS
    if where == "result":
        settings.TASKS = RICH

    drain()
    settings.TASKS = before

    assert default_task_backend.get_result(str(row.pk)).return_value == tag


@pytest.mark.django_db
def test_the_result_of_an_unknown_task_has_a_placeholder_for_the_task(trap):
    row = Task.objects.create(task_name=f"{trap}.job", args=[1])

    result = default_task_backend.get_result(str(row.pk))

    assert (result.task.module_path, result.args) == (f"{trap}.job", [1])
    with pytest.raises(NotRegistered, match="not a registered task"):
        result.task.call()


@pytest.mark.parametrize(
    "path",
    ["builtins.input", "{trap}.condition", "tests.core.registry.jobs.helper", "tests.core.registry.jobs.undeclared"],
)
@pytest.mark.parametrize("column", ["run_when", "skip_when"])
def test_a_node_row_cannot_call_a_function_that_is_not_a_condition(drain, trap, path, column):
    from tests.jobs.models import Entry

    handle = jobs.workflow_with_condition(jobs.always_true).start()
    WorkflowTask.objects.filter(workflow=handle.id).update(**{column: path.format(trap=trap)})

    drain()

    assert codes(handle) == {"one": "WORKER_RESOLUTION_ERROR"}
    assert not Entry.objects.exists()


# Forms, pages and commands.


@pytest.mark.slow
@pytest.mark.django_db
def test_the_schedule_form_imports_nothing(admin_client, settings, trap):
    settings.TASKS = RICH
    given = {"name": "s", "timing": "every:60", "timezone": "UTC", "args": "[]", "options": "{}", "backend": "default"}
    given |= {"catch_up": "latest", "overlap": "allow", "max_catch_up_runs": 1, "jitter": 0}
    tag = f'{{"value": {{"$type": "dataclass", "class": "{trap}.Thing", "value": {{}}}}}}'
    url = reverse("admin:horsies_django_schedule_add")

    for call in (
        {"task_name": jobs.identity.module_path, "kwargs": tag},
        {"task_name": f"{trap}.job", "kwargs": "{}"},
    ):
        assert admin_client.post(url, given | call).status_code == 200

    assert not Schedule.objects.exists()


@pytest.mark.django_db
def test_validating_a_schedule_imports_nothing(settings, trap):
    settings.TASKS = RICH
    tag = {"$type": "dataclass", "class": f"{trap}.Thing", "value": {}}
    row = Schedule(name="s", timing="every:60", task_name=jobs.identity.module_path, kwargs={"value": tag})

    with pytest.raises(ValidationError) as caught:
        row.full_clean()

    assert "is not a registered dataclass" in str(caught.value.message_dict["kwargs"])


@pytest.mark.django_db
def test_the_admin_shows_an_unknown_task_with_its_values_masked(admin_client, trap):
    row = Task.objects.create(task_name=f"{trap}.job", kwargs={"password": "hunter2"})

    for page in (
        reverse("admin:horsies_django_task_changelist"),
        reverse("admin:horsies_django_task_change", args=[row.pk]),
    ):
        answer = admin_client.get(page)
        assert answer.status_code == 200
        assert "hunter2" not in answer.content.decode()


@pytest.mark.django_db
def test_commands_show_an_unknown_task_but_refuse_to_send_one(capsys, trap):
    row = Task.objects.create(task_name=f"{trap}.job")

    call_command("horsies_task", "show", str(row.pk))
    with pytest.raises(CommandError, match="not a registered task"):
        call_command("horsies_task", "enqueue", f"{trap}.job")

    printed = capsys.readouterr().out
    assert f"{trap}.job\n  no task of this name is registered in this process\n" in printed
    assert list(Task.objects.all()) == [row]


@pytest.mark.django_db
def test_the_inspector_sends_only_registered_tasks(trap):
    with pytest.raises(ValueError, match="not a registered task"):
        tasks().enqueue(f"{trap}.job")


# What can be registered.


def test_dataclasses_in_type_hints_and_in_their_fields_are_registered(drain, settings):
    settings.TASKS = RICH
    handles = [jobs.weigh.send(Box([Parcel(1.5), Parcel(2.0)])), jobs.identity.send(Shelf.Known(3))]

    drain()

    assert [handle.value(0) for handle in handles] == [3.5, Shelf.Known(3)]


@pytest.mark.django_db
def test_sending_an_unregistered_dataclass_is_rejected(settings):
    settings.TASKS = RICH

    with pytest.raises(TypeError, match=r"register_type\(\)"):
        jobs.identity.send(Shelf.Unknown())

    assert not Task.objects.exists()


@pytest.mark.parametrize("kind", [int, "text", jobs.plain, Parcel(1.0)], ids=stable)
def test_only_dataclasses_can_be_registered_as_types(kind):
    with pytest.raises(TypeError, match="allowed: a dataclass"):
        register_type(kind)


def test_a_moved_dataclass_is_still_read_under_its_old_name(drain, settings):
    settings.TASKS = RICH
    register_type(Parcel, name="shop.old.Parcel")
    tag = {"$type": "dataclass", "class": "shop.old.Parcel", "value": {"weight": 2.0}}
    row = Task.objects.create(task_name=jobs.identity.module_path, args=[tag], typed_payload=True)

    drain()

    assert default_task_backend.get_result(str(row.pk)).return_value == Parcel(2.0)


def test_a_library_function_can_be_registered_as_a_task_under_a_name(drain):
    made = register_task(jobs.plain, name="shop.old.plain", priority=3)
    handle = made.send(1)
    old = Task.objects.create(task_name="shop.old.plain", args=[40])

    drain()

    assert handle.value(0) == 3
    assert default_task_backend.get_result(str(old.pk)).return_value == 42
    assert register_task(made) is made
    with pytest.raises(TypeError, match="priority"):
        register_task(made, priority=1)


@pytest.mark.parametrize("condition", [jobs.always_true, jobs.decorated, jobs.of_a_definition])
def test_a_condition_is_registered_by_its_signature_a_decorator_or_a_definition(drain, condition):
    assert codes(start_and_drain(jobs.workflow_with_condition(condition), drain)) == {"one": None}


def test_a_workflow_definition_runs_with_its_own_conditions(drain):
    assert start_and_drain(Conditional.build(), drain).status() == "COMPLETED"


def test_a_workflow_with_an_unregistered_condition_is_invalid():
    with pytest.raises(InvalidWorkflow, match="@register_condition") as caught:
        jobs.workflow_with_condition(jobs.helper).blueprint()

    assert caught.value.mistakes[0].problem.startswith("run_when is tests.core.registry.jobs.helper, which is not")


@pytest.mark.parametrize(
    "function", [len, lambda context: True, jobs.identity, jobs.workflow_with_condition.__class__, "x"]
)
def test_only_a_top_level_function_of_one_parameter_can_be_a_condition(function):
    with pytest.raises(ValueError, match="allowed: a module's own function"):
        register_condition(function)


# Modules.


@pytest.fixture
def late(tmp_path, monkeypatch):
    """Import a module that registers a task after Django has started."""
    from importlib import import_module

    from horsies_django.core.registry import registry

    name = f"late_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(TRAP)
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module(name)
    del sys.modules[name], registry.tasks[f"{name}.job"]
    registry.late -= {f"{name}.job", f"{name}.Thing"}


@pytest.mark.django_db
def test_sending_a_task_that_workers_may_not_know_is_logged_once(late, caplog):
    for _ in range(3):
        late.job.send()
        late.job.with_options(priority=1).send()
    jobs.identity.with_options(priority=2).send(1)

    warnings = [record for record in caplog.records if "workers may not know it" in record.getMessage()]
    assert [record.levelno for record in warnings if late.__name__ in record.getMessage()] == [logging.WARNING]
    assert f"Add '{late.__name__}' to OPTIONS['modules']" in warnings[0].getMessage()


def test_the_checks_name_each_module_whose_tasks_workers_may_not_know(late):
    found = {message.msg.split()[0]: message for message in check_modules()}

    assert (found[late.__name__].id, found[late.__name__].level) == ("horsies.W008", logging.WARNING)
    assert late.__name__ in found[late.__name__].hint
    assert "tests.jobs.tasks" not in found


def modules(settings, *names):
    settings.TASKS = {
        "default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "OPTIONS": {"modules": list(names)}}
    }


@pytest.mark.parametrize("name", ["no_such_module", "no.such.module", "tests.core.registry.nothing"])
def test_the_error_names_a_module_of_the_settings_that_does_not_exist(settings, name):
    modules(settings, "tests.core.registry.jobs", name)

    with pytest.raises(ImproperlyConfigured, match=rf"\['modules'\] has '{name}'; there is no such module"):
        load_modules()


def test_an_exception_from_importing_a_module_has_a_note_that_names_it(settings):
    modules(settings, "tests.enqueue.framework.broken_module")

    with pytest.raises(RuntimeError, match="this module is broken") as caught:
        load_modules()

    (note,) = caught.value.__notes__
    assert "imports tests.enqueue.framework.broken_module when Django starts" in note
    assert "TASKS['default']['OPTIONS']['modules']" in note


@pytest.mark.slow
def test_a_module_that_calls_sys_exit_when_imported_is_reported(tmp_path):
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "with_leaving.py").write_text(
        "from tests.settings import *\nTASKS['default']['OPTIONS']['modules'] = ['leaving']\n"
    )

    process = Process(
        "horsies_worker",
        "--drain",
        DJANGO_SETTINGS_MODULE="with_leaving",
        PYTHONPATH=f"{tmp_path}:{ROOT}",
        DATABASE_URL=f"sqlite:///{tmp_path}/none.sqlite3",
    )

    assert process.wait() == 1
    assert "leaving called sys.exit(0) while it was imported" in process.output
