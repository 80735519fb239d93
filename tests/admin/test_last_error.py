"""A task that waits for a retry shows its last error on pages, in lists, in searches and in commands."""

from __future__ import annotations

import json

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.urls import reverse

from horsies_django import RetryPolicy, Workflow
from horsies_django.models import Task
from tests.jobs import tasks

LIST = reverse("admin:horsies_django_task_changelist")


def page(client, name, key, **query):
    return client.get(reverse(f"admin:horsies_django_{name}_change", args=[key]), query).content.decode()


def output_of(capsys, *arguments):
    call_command("horsies_task", *map(str, arguments))
    return capsys.readouterr().out


@pytest.mark.slow
def test_a_retrying_task_shows_its_last_error_in_every_list_and_search(transactional_db, drain, staff, capsys):
    client = staff("view_task", "view_workflow")
    failing = tasks.fixed.with_options(retry_policy=RetryPolicy.fixed([3600], auto_retry_for=["DOWN"]))
    handle = failing.send("again")
    workflow = Workflow("again", [failing.node(node_id="bad")(key="node")]).start()
    other = tasks.noop.send()
    call_command("horsies_worker", once=True, verbosity=0)
    node = Task.objects.get(workflow_id=workflow.id)

    assert handle.info().error_code == "DOWN"
    retrying, others = {handle.id, node.pk}, {other.id}
    for query in (
        {"error_code": "DOWN"},
        {"q": "error:down"},
        {"q": "error:AGAIN"},
        {"q": "error:tasks.Down"},
        {"state": "retrying", "error_code": "DOWN"},
    ):
        html = client.get(LIST, query).content.decode()
        assert all(str(key) in html for key in retrying), query
        assert "DOWN" in html
        assert not any(str(key) in html for key in others), query
    assert str(handle.id) not in client.get(LIST, {"q": "error:nothing like it"}).content.decode()
    assert "DOWN" in page(client, "task", handle.id)
    assert '<span class="horsies-code">DOWN</span>' in page(client, "workflow", workflow.id)
    detail = page(client, "workflow", workflow.id, node=0).partition('id="horsies-flow-node"')[2]
    assert "<h3>Error of attempt 1</h3>" in detail
    assert '>tests.jobs.tasks.Down</strong> <code class="horsies-error-code">DOWN</code>' in detail
    assert '<p class="horsies-message">again</p>' in detail
    (row,) = (line for line in output_of(capsys, "list").splitlines() if str(handle.id) in line)
    assert "DOWN" in row.split()
    assert json.loads(output_of(capsys, "list", "--status", "retry", "--json").splitlines()[0])["error_code"] == "DOWN"
    assert "error_code: DOWN" in output_of(capsys, "show", handle.id)


@pytest.mark.slow
def test_a_completed_retry_clears_the_error_of_the_earlier_attempt(transactional_db, drain, staff):
    handle = tasks.flaky.send("once", fails=1)

    call_command("horsies_worker", once=True, verbosity=0)
    between = handle.info()
    drain()

    assert (between.status, between.error_code) == ("PENDING", "UNHANDLED_EXCEPTION")
    assert (handle.info().status, handle.info().error_code) == ("COMPLETED", None)
    html = page(staff("view_task"), "task", handle.id)
    assert "field-page_error" not in html
    assert not Task.objects.filter(error_code__isnull=False).exists()


def test_tasks_with_errors_are_found_by_an_index(transactional_db):
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")
        else:
            cursor.execute("ANALYZE")  # an earlier test may have left statistics of its own rows
        keys = Task.objects.filter(error_code__isnull=False).order_by("-pk").values_list("pk", flat=True)[:50]
        assert "horsies_task_error" in keys.explain()


@pytest.mark.slow
def test_the_tile_the_list_and_the_command_count_the_same_overdue_tasks(db, staff, capsys):
    long_ago = "2026-01-01T00:00Z"
    waits = Task.objects.create(task_name="jobs.waits", enqueued_at=long_ago)
    past = Task.objects.create(task_name="jobs.past", enqueued_at=long_ago, good_until="2026-01-02T00:00Z")
    client = staff("view_task")

    overview = client.get(reverse("admin:horsies_django_overview_changelist"))
    found = {
        trouble: [row.pk for row in client.get(LIST, {"trouble": trouble}).context["cl"].result_list]
        for trouble in ("overdue", "late")
    }
    call_command("horsies_status", json=True)
    counts = json.loads(capsys.readouterr().out)["counts"]

    tile = next(tile for tile in overview.context["tiles"] if tile["key"] == "overdue")
    assert "trouble=overdue" in tile["url"]
    assert tile["count"].number == counts["overdue"]["count"] == 1
    assert found == {"overdue": [past.pk], "late": [waits.pk]}
    assert 'horsies-status-pending">Overdue<' in client.get(LIST, {"trouble": "overdue"}).content.decode()
    assert 'horsies-status-pending">Due<' in client.get(LIST, {"trouble": "late"}).content.decode()
