"""``manage.py horsies_queue``, and its counterpart in Python."""

import json
from datetime import timedelta
from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command

from horsies_django.core.limits import Rate
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Queue, Task, Worker, depths
from tests.jobs import tasks
from tests.ops.inspector.factories import make

pytestmark = pytest.mark.django_db(transaction=True)


def run(*arguments, **options):
    out = StringIO()
    call_command("horsies_queue", *arguments, stdout=out, **options)
    return out.getvalue()


def test_queues_are_paused_and_resumed_and_a_repetition_is_reported():
    assert run("pause", "emails", "reports") == "The queue emails is paused.\nThe queue reports is paused.\n"
    assert run("pause", "emails") == "The queue emails is paused already.\n"
    assert Queue.objects.filter(paused=True).count() == 2

    assert json.loads(run("resume", "emails", "--json")) == {"action": "resume", "changed": {"emails": True}}
    assert run("resume", "emails") == "The queue emails is not paused.\n"
    assert not Queue.objects.get(name="emails").paused


def test_options_of_a_queue_are_set_one_by_one_and_reset_to_the_settings():
    run("set", "emails", "--max-concurrency", "5", "--rate-limit", "100/m, 10", "--retention", "2d")
    assert run("set", "emails", "--weight", "6") == "The queue emails: weight = 6.\n"

    row = Queue.objects.get(name="emails")
    assert (row.max_concurrency, row.rate_limit, row.weight) == (5, "100/m, 10", 6)
    assert (row.retention, row.priority) == (timedelta(days=2), None)
    assert run("set", "emails", "--max-concurrency", "inherit") == "The queue emails: max_concurrency = inherit.\n"
    assert Queue.objects.get(name="emails").max_concurrency is None


@pytest.mark.slow
def test_a_retention_is_set_by_state_and_reset_as_a_whole():
    run("set", "emails", "--retention", "completed=2d,failed=forever,cancelled=0")
    run("set", "emails", "--retention", "1d")

    row = Queue.objects.get(name="emails")
    by_state = {"failed": 3_153_600_000, "cancelled": 0}
    assert (row.retention, row.retention_by_state) == (timedelta(days=1), by_state)
    (line,) = (line for line in run("list").splitlines() if line.startswith("emails"))
    assert line.endswith("  -  kept for 24 h; Failed: kept forever; Cancelled: kept for 0 ms")
    run("set", "emails", "--retention", "inherit")
    row.refresh_from_db()
    assert (row.retention, row.retention_by_state) == (None, None)


@pytest.mark.slow
def test_the_queue_list_shows_options_from_rows_and_settings(settings):
    queues = {"reports": {"max_concurrency": 2, "weight": 3}, "default": {}}
    settings.TASKS = {
        "default": settings.TASKS["default"] | {"QUEUES": [*queues, "emails"], "OPTIONS": {"queues": queues}}
    }
    Queue.objects.named("emails").set(rate_limit="5/s")
    Queue.objects.named("emails").pause()
    Queue.objects.named("reports").set(weight=4)

    assert run("list").splitlines() == [
        "queue    due  latency  blocked  oldest blocked",
        "default    0        -        0               -  active",
        "emails     0        -        0               -  paused; rate 5/s, 5 tokens left",
        "reports    0        -        0               -  0 of 2 in progress; weight 4",
    ]
    (found,) = (queue for queue in json.loads(run("list", "--json"))["queues"] if queue["name"] == "reports")
    assert found == {
        "name": "reports",
        "paused": False,
        "max_concurrency": 2,
        "rate_limit": None,
        "priority": 0,
        "weight": 4,
        "retention": None,
        "retention_by_state": None,
        "latency_warning": None,
        "held": 0,
        "tokens": None,
        "due": 0,
        "due_is_at_least": False,
        "oldest_waits": None,
        "oldest_waits_is_at_least": False,
        "blocked": 0,
        "blocked_is_at_least": False,
        "oldest_blocked_waits": None,
    }


@pytest.mark.slow
def test_the_queue_list_shows_due_tasks_and_the_latency_even_of_a_queue_without_row_or_settings(monkeypatch):
    monkeypatch.setattr(depths, "MAX_COUNTED", 3)
    tasks.noop.with_options(queue_name="new").send_many({} for _ in range(5))
    Task.objects.filter(queue_name="new").update(enqueued_at=NowPlus(-7_230))
    tasks.noop.with_options(queue_name="later").schedule(60)

    head, *lines = run("list").splitlines()
    found = {queue["name"]: queue for queue in json.loads(run("list", "--json"))["queues"]}

    assert head.split() == ["queue", "due", "latency", "blocked", "oldest", "blocked"]
    assert [line.split()[:4] for line in lines] == [
        ["default", "0", "-", "0"],
        ["later", "0", "-", "0"],
        ["new", "3+", "2", "h"],
    ]
    assert (found["new"]["due"], found["new"]["due_is_at_least"]) == (3, True)
    assert found["new"]["oldest_waits"] == pytest.approx(7_230, abs=60)


@pytest.mark.once
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set", "emails"), "There is nothing to set; allowed: --max-concurrency, --rate-limit"),
        (("set", "emails", "--weight", "0"), "weight is 0; allowed: a whole number from 1 to 1000, or 'inherit'"),
        (("set", "emails", "--rate-limit", "5/w"), "rate_limit is '5/w'; allowed: a count from 1 on"),
        (("set", "emails", "--max-concurrency", "many"), "max_concurrency is 'many'; allowed: a whole number"),
        (("pause", ""), "'' is no name of a queue; allowed: 1 to 100 characters."),
        (("list", "--backend", "missing"), "There is no HorsiesBackend at TASKS['missing']"),
    ],
)
def test_invalid_arguments_exit_2_with_one_sentence(arguments, message):
    with pytest.raises(
        CommandError, match="^" + message.translate({ord(sign): f"\\{sign}" for sign in "[](),'./"})
    ) as caught:
        run(*arguments)

    assert caught.value.returncode == 2
    assert not Queue.objects.exists()


@pytest.mark.once
def test_a_queue_missing_from_the_settings_is_rejected(settings):
    settings.TASKS = {"default": settings.TASKS["default"] | {"QUEUES": ["emails"]}}

    with pytest.raises(CommandError, match="There is no queue 'emial' in TASKS"):
        run("pause", "emial")


@pytest.mark.once
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_concurrency": -1}, "max_concurrency is -1; allowed: a whole number from 0 to 1000000"),
        ({"colour": 5}, "A queue has no 'colour' to set; allowed: max_concurrency, rate_limit"),
        ({"retention": "soon"}, "retention is 'soon'; allowed: seconds, a timedelta"),
        ({"retention": {"failed": "soon"}}, r"retention\['failed'\] is 'soon'; allowed: seconds, a timedelta"),
        ({"retention": {"fialed": 5}}, "retention has the key 'fialed', with 5; allowed: completed, failed, "),
    ],
)
def test_setting_a_queue_from_python_rejects_an_invalid_value(given, message):
    with pytest.raises(ValueError, match=message):
        Queue.objects.named("emails").set(**given)


@pytest.mark.once
@pytest.mark.parametrize("text", ["100/m", "1/10s, 3", "5/h", "7/2d, 1"])
def test_a_parsed_rate_is_formatted_as_its_text(text):
    assert str(Rate.parse(text)) == text


@pytest.mark.slow
def test_a_queue_with_waiting_tasks_is_deleted_only_by_force():
    make("completed", queue_name="old")
    make("failed", queue_name="old")
    waiting = make("scheduled", queue_name="old")
    other = make("failed")
    Queue.objects.named("old").pause()

    with pytest.raises(CommandError, match=f"'old' has tasks that wait, such as {waiting.pk}") as refused:
        run("delete", "old")
    assert refused.value.returncode == 1
    assert Task.objects.filter(queue_name="old").count() == 3

    assert run("delete", "old", "--force") == "The queue old: deleted 3 tasks and what was set for it.\n"
    assert list(Task.objects.all()) == [other]
    assert not Queue.objects.exists()
    assert json.loads(run("delete", "old", "--json")) == {"name": "old", "tasks": 0, "had_row": False}


def test_workers_are_made_quiet_and_resumed_by_id_name_or_all():
    for key, name in (("a-1", ""), ("b-1", "web"), ("b-2", "web")):
        Worker.objects.register(key, name, "node1", 1)
    Worker.objects.register("dead", "web", "node1", 1)
    Worker.objects.filter(pk="dead").update(last_beat_at=NowPlus(-3_600))

    assert run("quiet", "b-1", "b-1") == "The worker b-1 is quiet.\n"
    changed = {"b-1": False, "b-2": True}
    assert json.loads(run("quiet", "--name", "web", "--json")) == {"action": "quiet", "changed": changed}
    assert run("quiet", "--name", "node1") == "The worker a-1 is quiet.\n"
    assert run("unquiet", "a-1") == "The worker a-1 is resumed.\n"
    assert run("unquiet", "--all").splitlines() == [
        "The worker a-1 is not quiet.",
        "The worker b-1 is resumed.",
        "The worker b-2 is resumed.",
    ]
    Worker.objects.all().delete()
    assert run("quiet", "--all") == "No worker is alive.\n"


def test_an_unknown_worker_is_an_error_that_lists_those_alive_and_nothing_is_done():
    Worker.objects.register("a-1", "web", "node1", 1)
    Worker.objects.register("dead", "", "node1", 1)
    Worker.objects.filter(pk="dead").update(last_beat_at=NowPlus(-3_600))

    for choice, message in (
        (["a-1", "dead", "x"], "There is no live worker 'dead', 'x'. Alive: a-1."),
        (["--name", "node1"], "No live worker has the name 'node1'. Alive: a-1."),
    ):
        with pytest.raises(CommandError) as caught:
            run("quiet", *choice)
        assert (str(caught.value), caught.value.returncode) == (message, 1)
    for choice in ([], ["a-1", "--all"]):
        with pytest.raises(CommandError, match=r"Allowed: ids, or --name NAME, or --all\.") as caught:
            run("unquiet", *choice)
        assert caught.value.returncode == 2
    assert not Worker.objects.filter(quiet_since__isnull=False).exists()


def test_force_deletes_no_queue_with_tasks_of_a_worker_or_a_workflow():
    make("running", queue_name="busy")
    make("failed", queue_name="busy")
    make("pending", queue_name="steps", workflow_id=uuid4())

    with pytest.raises(CommandError, match="'busy' has tasks that a worker holds"):
        run("delete", "busy", "--force")
    with pytest.raises(CommandError, match="'steps' stays: 0 tasks are deleted, 1 are not"):
        run("delete", "steps", "--force")
    assert Task.objects.count() == 3


def test_a_queue_removed_from_the_settings_can_be_deleted(settings):
    settings.TASKS = {"default": settings.TASKS["default"] | {"QUEUES": ["default"]}}
    make("failed", queue_name="gone")
    make("failed")

    assert run("delete", "gone", "default").splitlines() == [
        "The queue gone: deleted 1 tasks.",
        "The queue default: deleted 1 tasks.",
        "The queue default is in QUEUES, so tasks may still be sent to it.",
    ]
