"""A task that is tried again tells of its last error wherever tasks are listed, found and shown."""

from __future__ import annotations

import json

from django.core.management import call_command
from django.db import connection, transaction
from django.urls import reverse

from horsies_django import RetryPolicy, Workflow
from horsies_django.models import Task
from tests.jobs import tasks

LIST = reverse("admin:horsies_django_task_changelist")


def page(client, name, key, **query):
    return client.get(reverse(f"admin:horsies_django_{name}_change", args=[key]), query).content.decode()


def said(capsys, *words):
    call_command("horsies_task", *map(str, words))
    return capsys.readouterr().out


def test_a_task_that_is_tried_again_shows_its_last_error_in_every_list_and_search(
    transactional_db, drain, staff, capsys
):
    client = staff("view_task", "view_workflow")
    fails = tasks.fixed.with_options(retry_policy=RetryPolicy.fixed([3600], auto_retry_for=["DOWN"]))
    again = fails.send("again")
    flow = Workflow("again", [fails.node(node_id="bad")(key="node")]).start()
    fine = tasks.noop.send()
    call_command("horsies_worker", once=True, verbosity=0)
    node = Task.objects.get(workflow_id=flow.id)

    assert again.info().error_code == "DOWN"
    retrying, others = {again.id, node.pk}, {fine.id}
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
    assert str(again.id) not in client.get(LIST, {"q": "error:nothing like it"}).content.decode()
    assert "DOWN" in page(client, "task", again.id)
    assert "<td>DOWN" in page(client, "workflow", flow.id)
    assert "<dd>DOWN</dd>" in page(client, "workflow", flow.id, node=0)
    (row,) = (line for line in said(capsys, "list").splitlines() if str(again.id) in line)
    assert "DOWN" in row.split()
    assert json.loads(said(capsys, "list", "--status", "retry", "--json").splitlines()[0])["error_code"] == "DOWN"
    assert "error_code: DOWN" in said(capsys, "show", again.id)


def test_the_error_of_an_attempt_is_gone_once_another_has_completed(transactional_db, drain, staff):
    handle = tasks.flaky.send("once", fails=1)

    call_command("horsies_worker", once=True, verbosity=0)
    between = handle.info()
    drain()

    assert (between.status, between.error_code) == ("PENDING", "UNHANDLED_EXCEPTION")
    assert (handle.info().status, handle.info().error_code) == ("COMPLETED", None)
    html = page(staff("view_task"), "task", handle.id)
    assert "field-page_error" not in html
    assert not Task.objects.filter(error_code__isnull=False).exists()


def test_errors_are_found_by_their_index(transactional_db):
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")
        else:
            cursor.execute("ANALYZE")  # an earlier test may have left figures of its own rows
        keys = Task.objects.filter(error_code__isnull=False).order_by("-pk").values_list("pk", flat=True)[:50]
        assert "horsies_task_error" in keys.explain()


def test_overdue_is_one_thing_past_its_deadline_for_the_tile_the_list_and_the_command(db, staff, capsys):
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

    tile = next(tile for tile in overview.context["tiles"] if tile.key == "overdue")
    assert "trouble=overdue" in tile.url
    assert tile.count.number == counts["overdue"]["count"] == 1
    assert found == {"overdue": [past.pk], "late": [waits.pk]}
    assert '"horsies-state">overdue<' in client.get(LIST, {"trouble": "overdue"}).content.decode()
    assert '"horsies-state">due<' in client.get(LIST, {"trouble": "late"}).content.decode()
