"""``manage.py horsies_queue``, and the same from Python."""

import json
from datetime import timedelta
from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command

from horsies_django.core.rates import Rate
from horsies_django.models import Queue, Task
from tests.ops.inspector.factories import make

pytestmark = pytest.mark.django_db(transaction=True)


def said(*arguments, **options):
    out = StringIO()
    call_command("horsies_queue", *arguments, stdout=out, **options)
    return out.getvalue()


def test_queues_are_paused_and_resumed_and_what_is_so_already_is_told():
    assert said("pause", "emails", "reports") == "The queue emails is paused.\nThe queue reports is paused.\n"
    assert said("pause", "emails") == "The queue emails is paused already.\n"
    assert Queue.objects.filter(paused=True).count() == 2

    assert json.loads(said("resume", "emails", "--json")) == {"action": "resume", "changed": {"emails": True}}
    assert said("resume", "emails") == "The queue emails is not paused.\n"
    assert not Queue.objects.get(name="emails").paused


def test_what_holds_is_set_column_by_column_and_given_back_to_the_settings():
    said("set", "emails", "--max-concurrency", "5", "--rate-limit", "100/m, 10", "--retention", "2d")
    assert said("set", "emails", "--weight", "6") == "The queue emails: weight = 6.\n"

    row = Queue.objects.get(name="emails")
    assert (row.max_concurrency, row.rate_limit, row.weight) == (5, "100/m, 10", 6)
    assert (row.retention, row.priority) == (timedelta(days=2), None)
    assert said("set", "emails", "--max-concurrency", "inherit") == "The queue emails: max_concurrency = inherit.\n"
    assert Queue.objects.get(name="emails").max_concurrency is None


def test_a_retention_is_set_by_state_and_given_back_as_a_whole():
    said("set", "emails", "--retention", "completed=2d,failed=forever,cancelled=0")
    said("set", "emails", "--retention", "1d")

    row = Queue.objects.get(name="emails")
    by_state = {"failed": 3_153_600_000, "cancelled": 0}
    assert (row.retention, row.retention_by_state) == (timedelta(days=1), by_state)
    (words,) = (line for line in said("list").splitlines() if line.startswith("emails"))
    assert words.removeprefix("emails").strip() == "kept for 24 h; Failed: kept for ever; Cancelled: kept for 0 ms"
    said("set", "emails", "--retention", "inherit")
    row.refresh_from_db()
    assert (row.retention, row.retention_by_state) == (None, None)


def test_the_list_tells_what_holds_by_rows_and_settings(settings):
    queues = {"reports": {"max_concurrency": 2, "weight": 3}, "default": {}}
    settings.TASKS = {
        "default": settings.TASKS["default"] | {"QUEUES": [*queues, "emails"], "OPTIONS": {"queues": queues}}
    }
    Queue.objects.named("emails").set(rate_limit="5/s")
    Queue.objects.named("emails").pause()
    Queue.objects.named("reports").set(weight=4)

    assert said("list").splitlines() == [
        "default  open",
        "emails   paused; rate 5/s, 5 may begin now",
        "reports  0 of 2 run; weight 4",
    ]
    (found,) = (queue for queue in json.loads(said("list", "--json"))["queues"] if queue["name"] == "reports")
    assert found == {
        "name": "reports",
        "paused": False,
        "max_concurrency": 2,
        "rate_limit": None,
        "priority": 0,
        "weight": 4,
        "retention": None,
        "retention_by_state": None,
        "held": 0,
        "tokens": None,
    }


@pytest.mark.once
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("set", "emails"), "There is nothing to set; allowed: --max-concurrency, --rate-limit"),
        (("set", "emails", "--weight", "0"), "weight is 0; allowed: a whole number from 1 to 1000, or 'inherit'"),
        (("set", "emails", "--rate-limit", "5/w"), "rate_limit is '5/w'; allowed: a count from 1 on"),
        (("set", "emails", "--max-concurrency", "many"), "max_concurrency is 'many'; allowed: a whole number"),
        (("pause", ""), "'' is no name of a queue; allowed: 1 to 100 characters."),
        (("list", "--backend", "nobody"), "There is no HorsiesBackend at TASKS['nobody']"),
    ],
)
def test_what_can_not_be_is_one_sentence_and_exit_status_2(arguments, words):
    with pytest.raises(
        CommandError, match="^" + words.translate({ord(sign): f"\\{sign}" for sign in "[](),'./"})
    ) as it:
        said(*arguments)

    assert it.value.returncode == 2
    assert not Queue.objects.exists()


@pytest.mark.once
def test_a_queue_that_the_settings_do_not_have_is_named_with_those_they_have(settings):
    settings.TASKS = {"default": settings.TASKS["default"] | {"QUEUES": ["emails"]}}

    with pytest.raises(CommandError, match="There is no queue 'emial' in TASKS"):
        said("pause", "emial")


@pytest.mark.once
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_concurrency": -1}, "max_concurrency is -1; allowed: a whole number from 0 to 1000000"),
        ({"colour": 5}, "A queue has no 'colour' to set; allowed: max_concurrency, rate_limit"),
        ({"retention": "soon"}, "retention is 'soon'; allowed: seconds, a timedelta"),
        ({"retention": {"failed": "soon"}}, r"retention\['failed'\] is 'soon'; allowed: seconds, a timedelta"),
        ({"retention": {"fialed": 5}}, "retention has the key 'fialed', with 5; allowed: completed, failed, "),
    ],
)
def test_from_python_the_field_its_value_and_what_is_allowed_are_named(given, words):
    with pytest.raises(ValueError, match=words):
        Queue.objects.named("emails").set(**given)


@pytest.mark.once
@pytest.mark.parametrize("text", ["100/m", "1/10s, 3", "5/h", "7/2d, 1"])
def test_a_rate_is_written_as_it_was_read(text):
    assert str(Rate.parse(text)) == text


def test_a_queue_is_deleted_with_what_has_ended_and_not_while_it_has_live_tasks():
    make("completed", queue_name="old")
    make("failed", queue_name="old")
    waiting = make("scheduled", queue_name="old")
    other = make("failed")
    Queue.objects.named("old").pause()

    with pytest.raises(CommandError, match=f"'old' has tasks that wait, such as {waiting.pk}") as refused:
        said("delete", "old")
    assert refused.value.returncode == 1
    assert Task.objects.filter(queue_name="old").count() == 3

    assert said("delete", "old", "--force") == "The queue old: deleted 3 tasks and what was set for it.\n"
    assert list(Task.objects.all()) == [other]
    assert not Queue.objects.exists()
    assert json.loads(said("delete", "old", "--json")) == {"name": "old", "tasks": 0, "had_row": False}


def test_a_queue_is_not_deleted_by_force_under_a_worker_nor_under_a_workflow():
    make("running", queue_name="busy")
    make("failed", queue_name="busy")
    make("pending", queue_name="steps", workflow_id=uuid4())

    with pytest.raises(CommandError, match="'busy' has tasks that a worker holds"):
        said("delete", "busy", "--force")
    with pytest.raises(CommandError, match="'steps' stays: 0 tasks are deleted, 1 are not"):
        said("delete", "steps", "--force")
    assert Task.objects.count() == 3


def test_a_queue_that_the_settings_do_not_have_any_more_can_be_deleted(settings):
    settings.TASKS = {"default": settings.TASKS["default"] | {"QUEUES": ["default"]}}
    make("failed", queue_name="gone")
    make("failed")

    assert said("delete", "gone", "default").splitlines() == [
        "The queue gone: deleted 1 tasks.",
        "The queue default: deleted 1 tasks.",
        "The queue default is in QUEUES, so tasks may still be sent to it.",
    ]
