"""Run an ended task again as a new task, with other arguments."""

from __future__ import annotations

import json
import time
from datetime import date
from decimal import Decimal

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from horsies_django import Workflow
from horsies_django.admin.tasks.run_again import MAX_AGE
from horsies_django.core.ids import uuid7
from horsies_django.models import Task
from horsies_django.ops.inspector.run_again import HIDDEN
from tests.admin import page_jobs
from tests.admin.client import address, html_of, log_in, messages_of
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db, pytest.mark.once]


@pytest.fixture
def operator(client):
    return log_in(client, "view_task", "rerun_task")


def ended(task=tasks.echo, status="FAILED", **columns):
    column = {"FAILED": "failed_at", "COMPLETED": "completed_at"}[status]
    values = {"status": status, "attempt": 1, "claim": 1, column: "2026-01-01T00:00:00Z", **columns}
    return Task.objects.create(task_name=task.module_path, **values)


def form_url(row):
    return reverse("admin:horsies_django_task_run_again", args=[row.pk])


def send(client, row, **values):
    """Post the form with the arguments of the row, except those that are given."""
    form = client.get(form_url(row)).context["form"]
    data = {name: form[name].value() for name in form.fields}
    given = {name: json.dumps(value) if name in ("args", "kwargs") else value for name, value in values.items()}
    return client.post(form_url(row), {**{name: value for name, value in data.items() if value is not None}, **given})


def form_id(client, row):
    """Open the form, and return the id of the task that it sends."""
    return client.get(form_url(row)).context["form"]["task_id"].value()


def logged(row):
    return list(LogEntry.objects.filter(object_id=row.pk).order_by("pk").values_list("change_message", flat=True))


def only_new():
    return Task.objects.get(rerun_of_id__isnull=False)


@pytest.mark.slow
def test_an_ended_task_runs_again_with_other_arguments_as_a_new_linked_task(operator, drain):
    row = ended(args=["old"], kwargs={"b": 1, "a": [2]}, queue_name="emails", priority=7)
    assert form_url(row) in html_of(operator, row)

    response = send(operator, row, args=["new"], delay="0")

    new = only_new()
    assert response.url == address(new)
    assert (new.args, new.kwargs, new.queue_name, new.priority) == (["new"], {"b": 1, "a": [2]}, "emails", 7)
    assert new.status == "PENDING"
    assert new.rerun_of_id == row.pk
    row.refresh_from_db()
    assert (row.status, row.args) == ("FAILED", ["old"])
    assert str(row.pk) in messages_of(response)
    assert f'<a href="{address(row)}">' in html_of(operator, new)
    assert f'<a href="{address(new)}">{new.pk}</a>' in html_of(operator, row)
    assert (logged(row), logged(new)) == ([f"Run again as {new.pk}."], [f"Run again from {row.pk}."])
    drain()
    new.refresh_from_db()
    assert new.result == {"ok": {"args": ["new"], "kwargs": {"b": 1, "a": [2]}}}


def test_the_form_takes_queue_priority_and_delay(operator):
    row = ended()

    send(operator, row, queue_name="emails", priority="-3", delay="3600")

    new = only_new()
    assert (new.queue_name, new.priority, new.deferred) == ("emails", -3, True)
    assert 3_500 < (new.enqueued_at - new.sent_at).total_seconds() < 3_700


@pytest.mark.slow
def test_a_form_that_is_sent_twice_runs_the_task_once(operator):
    row = ended()
    task_id = form_id(operator, row)

    answers = [send(operator, row, args=[1], task_id=task_id) for _ in range(2)]
    other = send(operator, row, args=[2], task_id=task_id)

    new = only_new()
    assert [answer.url for answer in answers] == [address(new)] * 2
    assert "already been sent" in other.content.decode()
    assert logged(row) == [
        f"Run again as {new.pk}.",
        f"Run again: the form had already been sent, as {new.pk}.",
        "Run again was refused: This form has already been sent with other values. Open it again.",
    ]
    assert Task.objects.count() == 2


@pytest.mark.slow
def test_a_form_is_sent_only_with_an_id_that_it_has_made_for_the_user_and_the_task(operator, monkeypatch):
    secret, row, other = ended(kwargs={"pin": "1234"}), ended(), ended()
    colleague = Client()
    colleague.force_login(get_user_model().objects.create_superuser("colleague"))
    made_elsewhere = form_id(operator, other), form_id(colleague, row)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: time.time_ns() / 1e9 - MAX_AGE - 1)
        old = form_id(operator, row)

    for task_id in (secret.pk, row.pk, uuid7(), *made_elsewhere, old, ""):
        answer = send(operator, row, kwargs={"pin": "1234"}, task_id=str(task_id))
        assert answer.status_code == 200, task_id
        assert list(answer.context["form"].errors) == ["task_id"]
    assert Task.objects.count() == 3
    assert logged(row) == ["Run again was refused: Task id"] * 7


@pytest.mark.slow
@pytest.mark.parametrize("task", [page_jobs.once_by_pin, page_jobs.once_by_key_of_pin, page_jobs.one_by_pin])
def test_no_call_is_sent_whose_keys_would_tell_whether_a_masked_value_was_guessed(operator, task):
    task.send("1234")
    row, changed = ended(task, args=["9999"]), ended(task)

    opened = operator.get(form_url(row))
    sent = [operator.post(form_url(row), {}), *(send(operator, changed, kwargs={"pin": pin}) for pin in ("1234", "1"))]

    assert "could confirm a guess" in messages_of(opened)
    assert [answer.status_code for answer in sent] == [302, 200, 200]
    right, wrong = (answer.context["form"].errors for answer in sent[1:])
    assert right == wrong
    assert "could confirm a guess" in right["__all__"][0]
    assert Task.objects.count() == 3
    assert len(logged(row)) == 1
    assert len(logged(changed)) == 2
    assert all("could confirm a guess" in text for text in logged(row) + logged(changed))


@pytest.mark.slow
def test_masked_values_are_not_shown_and_have_to_be_entered_again(operator):
    secrets = {"password": "geheim-1", "card": {"api_key": "geheim-2", "owner": "Ada"}}
    row = ended(args=["public"], kwargs=secrets)

    page = operator.get(form_url(row))
    html = page.content.decode()
    refused = send(operator, row)
    masked = send(operator, row, kwargs={"password": "*" * 20, "card": {}})
    within = send(operator, row, kwargs={"password": f"x {HIDDEN}"})

    assert "geheim" not in html
    assert set(page.context["hidden"]) == {'kwargs["password"]', 'kwargs["card"]["api_key"]'}
    assert json.loads(page.context["form"]["kwargs"].value())["card"]["owner"] == "Ada"
    for answer, place in ((refused, 'kwargs["card"]["api_key"]'), (masked, 'kwargs["password"]'), (within, "password")):
        (message,) = answer.context["form"].errors["kwargs"]
        assert place in message
    assert not Task.objects.filter(rerun_of_id__isnull=False).exists()
    send(operator, row, kwargs={"password": "new", "card": {"api_key": "k", "owner": "Ada"}})
    assert only_new().kwargs["password"] == "new"
    assert "new" not in " ".join(LogEntry.objects.values_list("change_message", flat=True))


def test_a_masked_positional_argument_is_hidden_by_the_name_of_its_parameter(operator):
    row = ended(page_jobs.pay, args=[3, "geheim"], kwargs={"more": [{"iban": "geheim"}]})

    page = operator.get(form_url(row))

    assert "geheim" not in page.content.decode()
    assert page.context["hidden"] == ["args[1]", 'kwargs["more"][0]["iban"]']


@pytest.mark.slow
def test_typed_values_keep_their_type_unless_they_are_edited(operator, settings, drain):
    stored = settings.TASKS["default"]
    settings.TASKS = {
        **settings.TASKS,
        "default": {**stored, "OPTIONS": {**stored.get("OPTIONS", {}), "serializer": "rich"}},
    }
    handle = tasks.identity.send({"when": date(2026, 1, 2), "price": Decimal("1.10"), "$type": "x"})
    drain()
    row = Task.objects.get(pk=handle.id)

    send(operator, row)

    new = only_new()
    assert (new.args, new.typed_payload) == (row.args, True)
    drain()
    new.refresh_from_db()
    assert new.result == row.result
    broken = send(operator, row, args=[{"$type": "date", "value": "no date"}])
    assert "a stored date can" in broken.context["form"].errors["args"][0]
    unknown = send(operator, row, args=[{"$type": "dataclass", "class": "os.system", "value": {}}])
    assert "not a registered dataclass" in unknown.context["form"].errors["args"][0]


@pytest.mark.parametrize(
    ("values", "field", "message"),
    [
        ({"args": {"a": 1}}, "args", "not a JSON array"),
        ({"kwargs": [1]}, "kwargs", "not a JSON object"),
        ({"kwargs": {"a": 1, "c": 1}}, "kwargs", "unexpected keyword argument"),
        ({"kwargs": {"a": "x"}}, "kwargs", "int"),
        ({"args": ["x"], "kwargs": {}}, "args", "int"),
        ({"queue_name": "nowhere"}, "queue_name", "has no queue nowhere"),
        ({"priority": "101"}, "priority", "100"),
        ({"delay": "-1"}, "delay", "0"),
        ({"delay": "inf"}, "delay", "number"),
    ],
)
def test_a_mistake_is_reported_at_its_field_and_sends_nothing(operator, values, field, message, settings):
    stored = settings.TASKS["default"]
    settings.TASKS = {**settings.TASKS, "default": {**stored, "QUEUES": ["default", "emails"]}}
    row = ended(tasks.add, kwargs={"a": 1})

    answer = send(operator, row, **values)

    assert answer.status_code == 200
    assert list(answer.context["form"].errors) == [field]
    assert message in answer.context["form"].errors[field][0]
    assert Task.objects.count() == 1


def test_text_that_is_no_json_is_shown_again_as_it_was_typed(operator):
    row = ended(kwargs={"a": 1})
    data = {"task_id": str(uuid7()), "kwargs": '{"a": <b>}', "queue_name": "default", "priority": "0"}

    answer = operator.post(form_url(row), data)

    assert "This is not valid JSON" in answer.context["form"].errors["kwargs"][0]
    assert "{&quot;a&quot;: &lt;b&gt;}" in answer.content.decode()


@pytest.mark.slow
def test_only_tasks_of_their_own_that_have_ended_can_be_run_again(operator):
    workflow = Workflow("w", [tasks.noop.node()()]).start()
    node = Task.objects.get(workflow_id=workflow.id)
    workflow.cancel()
    rows = {
        Task.objects.create(task_name=tasks.noop.module_path): "has not ended",
        Task.objects.get(pk=node.pk): "node of a workflow",
        ended(item_count=2, has_inputs=True): "calls of a group",
        ended(backend="gone"): "no longer has the backend gone",
    }
    unknown = ended()
    Task.objects.filter(pk=unknown.pk).update(task_name="gone.task")
    rows[Task.objects.get(pk=unknown.pk)] = "does not know the task gone.task"

    for row, reason in rows.items():
        assert form_url(row) not in html_of(operator, row)
        response = operator.get(form_url(row))
        assert response.url == address(row)
        assert reason in messages_of(response), reason
        assert operator.post(form_url(row), {"args": "[]"}).status_code == 302
    assert not Task.objects.filter(rerun_of_id__isnull=False).exists()


def test_arguments_that_are_too_large_or_unreadable_are_not_edited(operator):
    large, odd = ended(args=["x" * 100_001]), ended(kwargs=[1])

    assert "too large" in messages_of(operator.get(form_url(large)))
    assert "be read" in messages_of(operator.get(form_url(odd)))


def test_the_permission_is_needed_and_a_read_only_admin_has_no_such_page(client, settings):
    row = ended()
    for codenames in (["view_task"], ["rerun_task"], ["view_task", "retry_task", "change_task"]):
        client = log_in(client, *codenames)
        assert client.get(form_url(row)).status_code == 403
        assert client.post(form_url(row), {}).status_code == 403
    client.force_login(get_user_model().objects.create_superuser("root"))
    assert client.get(form_url(row)).status_code == 200
    stored = settings.TASKS["default"]
    options = {**stored.get("OPTIONS", {}), "admin": {"read_only": True}}
    settings.TASKS = {**settings.TASKS, "default": {**stored, "OPTIONS": options}}
    assert client.get(form_url(row)).status_code == 403
    assert client.post(form_url(row), {}).status_code == 403
    assert form_url(row) not in html_of(client, row)


def test_a_get_sends_nothing_and_a_post_needs_the_csrf_token(operator, django_user_model):
    row = ended()
    operator.get(form_url(row), {"args": "[1]", "queue_name": "default", "priority": "0", "task_id": str(uuid7())})
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(django_user_model.objects.get(username="staff"))

    assert strict.post(form_url(row), {"queue_name": "default", "priority": "0"}).status_code == 403
    assert Task.objects.count() == 1


def test_a_call_whose_unique_key_is_held_joins_the_task_that_has_it(operator):
    first = page_jobs.once.send("a")
    row = ended(page_jobs.once, args=["a"])

    response = send(operator, row)

    assert response.url == address(first)
    assert "the same unique key" in messages_of(response)
    assert logged(row) == [f"Run again: no new task, {first.id} has the same unique key."]
    assert Task.objects.count() == 2


@pytest.mark.slow
def test_the_links_cost_the_page_one_statement(operator):
    row = ended()
    for _ in range(7):
        send(operator, row)
    html_of(operator, row)
    with CaptureQueriesContext(connection) as captured:
        html = html_of(operator, row)

    newest = Task.objects.filter(rerun_of_id=row.pk).order_by("-id").values_list("pk", flat=True)
    assert [str(key) in html for key in newest] == [True] * 5 + [False] * 2
    assert sum("rerun_of_id" in query["sql"].partition("WHERE")[2] for query in captured) == 1


def test_the_form_needs_few_statements(operator):
    row = ended(args=["old"], kwargs={"b": 1})

    with CaptureQueriesContext(connection) as captured:
        assert operator.get(form_url(row)).status_code == 200

    assert len(captured) <= 8
