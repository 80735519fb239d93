"""``horsies_schedule``: list, run, enable and disable schedules."""

import io
import json
import logging

import pytest
from django.core.management import CommandError, call_command

from horsies_django import Every, schedule
from horsies_django.core.platform import system_user
from horsies_django.models import Schedule, Task
from tests.jobs.tasks import noop

pytestmark = pytest.mark.django_db(transaction=True)


def make(name, **columns):
    given = {"timing": "every:3600", "task_name": noop.module_path, "timezone": "UTC"}
    return Schedule.objects.create(name=name, **given | columns)


def run(*arguments, status=0, **options):
    """Run the command; return its output, followed by its errors."""
    out, err, code, message = io.StringIO(), io.StringIO(), 0, ""
    try:
        call_command("horsies_schedule", *arguments, stdout=out, stderr=err, **options)
    except CommandError as error:
        code, message = error.returncode, str(error)
    assert code == status, message
    return out.getvalue() + err.getvalue() + message


def test_the_schedule_list_shows_due_times_and_as_json_every_column():
    make("nightly", timing="cron:0 9 * * *", run_count=3, last_error="TypeError: odd")
    make("elsewhere", backend="other")
    off = make("off", enabled=False)

    heads, nightly, disabled = run("list").splitlines()
    assert heads.split("  ")[0] == "name"
    assert nightly.startswith("nightly  enabled")
    assert "cron:0 9 * * *  UTC" in nightly
    assert nightly.endswith("3  TypeError: odd")
    assert disabled.startswith("off      disabled (operator)  -")

    found = json.loads(run("list", "--json"))["schedules"]
    assert [row["name"] for row in found] == ["nightly", "off"]
    assert found[0]["next_run_at"].endswith("T09:00:00+00:00")
    assert (found[1]["enabled"], found[1]["next_run_at"], found[1]["task_name"]) == (False, None, off.task_name)
    Schedule.objects.all().delete()
    assert run("list") == "There are no schedules.\n"


@pytest.mark.once
def test_schedules_are_run_enabled_and_disabled_and_each_action_is_logged(caplog):
    caplog.set_level(logging.INFO, "horsies_django.operations")
    row = make("a")
    make("ended", end_at=row.created_at, enabled=False)

    assert run("disable", "a") == "The schedule a is disabled.\n"
    assert run("disable", "a") == "The schedule a is disabled already.\n"
    sent = run("run", "a")
    assert sent == f"The schedule a has sent id={Task.objects.get().pk}.\n"
    assert run("enable", "a") == "The schedule a is enabled.\n"
    assert run("enable", "a") == "The schedule a is enabled already.\n"
    row.refresh_from_db()
    assert (row.enabled, row.run_count, row.next_run_at is not None) == (True, 1, True)
    assert "has no slot left" in run("enable", "ended", status=1)

    lines = [record.getMessage() for record in caplog.records if record.name == "horsies_django.operations"]
    by_command = f"user={system_user()} via=horsies_schedule act=schedule"
    assert lines[0] == f"{by_command}.disable count=1 schedule=a"
    assert lines[2:4] == [
        f"{by_command}.run count=1 schedule=a",
        f"{by_command}.enable count=1 schedule=a",
    ]


@pytest.mark.once
def test_a_schedule_that_cannot_be_run_is_reported_and_others_still_run():
    make("odd", kwargs={"nope": 1})
    make("key", options={"unique_key": "k"})

    printed = run("run", "odd", "key", status=1)

    assert "The schedule odd could not be run: TypeError:" in printed
    assert "nope" in Schedule.objects.get(name="odd").last_error
    assert "1 of 2 could not be run." in printed
    key = Task.objects.get().pk
    assert run("run", "key") == f"The schedule key has sent nothing new: id={key} has its unique key.\n"
    assert Schedule.objects.get(name="key").run_count == 1


@pytest.mark.once
def test_an_unknown_schedule_is_reported_and_nothing_is_done():
    from horsies_django.schedules.declaration import declarations

    make("nightly")
    make("elsewhere", backend="other")
    declared = schedule("declared", noop, Every(hours=1))
    try:
        printed = run("disable", "nightly", "nightli", "elsewhere", "declared", status=2)
    finally:
        declarations.by_place.pop((declared.name, declared.place))

    assert "There is no schedule 'nightli'. Did you mean 'nightly'?" in printed
    assert "'elsewhere' is one of the backend 'other': give --backend other." in printed
    assert "no scheduler has written its row yet" in printed
    assert Schedule.objects.get(name="nightly").enabled
    assert "There is no HorsiesBackend at TASKS['missing']" in run("list", "--backend", "missing", status=2)
