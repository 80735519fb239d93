"""A workflow's page says its error first, and parts the time that nodes waited from the time they ran."""

import re
from datetime import timedelta
from html import unescape

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from horsies_django.models import Task, Workflow, WorkflowTask
from tests.admin.workflow_rows import at, declined, node, order, workflow

pytestmark = pytest.mark.django_db

VIEW = ("view_workflow", "view_task")


def page(client, row, query=""):
    response = client.get(reverse("admin:horsies_django_workflow_change", args=[row.pk]) + query)
    assert response.status_code == 200
    return response.content.decode()


def part(html, start, end):
    """Return the text between two texts, without tags and with single spaces."""
    inner = html.partition(start)[2].partition(end)[0]
    assert inner, f"{start} is not on the page"
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", inner)).split())


def summary(html):
    return part(html, 'id="horsies-flow-summary"', "</section>")


def retry_url(row, index):
    return reverse("admin:horsies_django_workflow_retry_node", args=[row.pk, index])


# The error.


def test_a_failed_workflow_says_first_which_node_failed_and_why(staff):
    row = order()

    html = page(staff(*VIEW, "retry_workflow"), row)

    top = html.partition('id="horsies-flow-summary"')[2].partition('class="horsies-counts"')[0]
    assert "charge failed" in top
    assert 'shop.CardDeclined</strong> <code class="horsies-error-code">DECLINED</code>' in top
    assert "The bank said:\nno &lt;money&gt;." in top
    assert re.search(r"<details [^>]*open>.*Traceback \(most recent call last\).*&lt;no&gt;", top, re.S)
    task = WorkflowTask.objects.get(workflow=row, node_id="charge").task_id
    assert f'href="{reverse("admin:horsies_django_task_change", args=[task])}"' in top
    assert f'href="{retry_url(row, 2)}"' in top
    assert "\\n" not in html
    assert html.count("The bank said") == 1
    assert html.count("line 88, in charge") == 1


@pytest.mark.once
def test_the_error_links_to_nothing_that_a_user_may_not_open(staff):
    row = order()

    top = page(staff("view_workflow"), row).partition('class="horsies-failure"')[2].partition("</div>")[0]

    assert "charge failed" in top
    assert "/horsies_django/task/" not in top
    assert retry_url(row, 2) not in top


def test_the_error_of_a_map_is_that_of_its_first_failed_item(staff):
    failed = {"error_code": "MAP_ITEM_FAILED", "message": "2 items failed.", "node_id": "images"}
    items = [
        {"node_id": f"images[{index}]", "map_index": 0, "task_name": "shop.resize"}
        | (declined(f"item {index}") if index in (1, 3) else {"status": "COMPLETED"})
        for index in range(4)
    ]
    row = workflow(
        {"node_id": "images", "kind": "map", "status": "FAILED", "error_code": "MAP_ITEM_FAILED"},
        *items,
        failed_index=0,
        error=failed,
        seconds=9,
    )

    text = summary(page(staff(*VIEW, "retry_workflow"), row))

    assert "images[1] failed item of the map images" in text
    assert "item 1" in text
    assert "Retry images[1]" in text
    assert "item 3" not in text


def test_the_error_of_a_subworkflow_is_that_of_the_node_inside_and_retries_it_there(staff):
    error = {"error_code": "SUBWORKFLOW_FAILED", "message": "no", "node_id": "payment"}
    outer = workflow(
        {"node_id": "payment", "kind": "subworkflow", "status": "FAILED"}, failed_index=0, error=error, seconds=9
    )
    parent = WorkflowTask.objects.get(workflow=outer)
    inner = workflow(
        node("ask", 0, (0, 1)),
        node("charge", 1, (1, 2), **declined()),
        root_id=outer.pk, depth=1, parent=parent, failed_index=1, seconds=2,
    )  # fmt: skip

    html = page(staff(*VIEW, "retry_workflow"), outer)

    assert "charge failed node of the subworkflow payment" in summary(html)
    assert "shop.CardDeclined" in summary(html)
    assert retry_url(inner, 1) in html


@pytest.mark.once
def test_a_running_workflow_names_the_node_that_failed_so_far(staff):
    row = workflow(
        node("a", 0, (0, 1), **declined()), node("b", 0, (0, 1), status="RUNNING"), status="PAUSED", failed_index=0
    )
    assert "a failed" in summary(page(staff(*VIEW), row))


@pytest.mark.once
def test_a_completed_workflow_shows_no_error_of_a_node_that_was_not_required(staff):
    nodes = [node("a", 0, (0, 1)), node("b", 0, (0, 1), **declined())]
    row = workflow(*nodes, status="COMPLETED", failed_index=1, success_policy=[{"required": [0]}], seconds=1)

    html = page(staff(*VIEW), row)
    text = summary(html)

    assert "b failed" not in text
    assert "Completed by its success policy: case 1 is met, which requires a." in text
    assert re.search(r'required(&quot;|"): \[\s*(&quot;|")a(&quot;|")\s*\]', html)


@pytest.mark.once
def test_a_workflow_that_no_node_explains_shows_its_own_error(staff):
    error = {"error_code": "WORKFLOW_PAUSED", "message": "It was paused for too long.", "data": None}
    row = workflow(node("a", 0), status="EXPIRED", error=error)
    assert "Error WORKFLOW_PAUSED It was paused for too long." in summary(page(staff(*VIEW), row))


@pytest.mark.once
def test_the_data_of_an_error_is_masked(staff):
    nodes = [node("a", 0, (0, 1), **declined(data={"password": "hunter2"}))]
    assert "hunter2" not in page(staff(*VIEW), workflow(*nodes, failed_index=0, seconds=1))


@pytest.mark.once
def test_the_bar_shows_nodes_that_failed_apart_from_those_that_completed(staff):
    html = page(staff(*VIEW), order())

    bar = html.partition('<svg class="horsies-split"')[2].partition("</svg>")[0]
    assert 'aria-label="2 Completed, 1 Failed, 1 Skipped"' in bar
    widths = dict(re.findall(r'<rect class="horsies-is-(\w+)" x="[\d.]+" y="0" width="([\d.]+)"', bar))
    assert widths == {"completed": "50.00", "failed": "25.00", "skipped": "25.00"}
    assert "<progress" not in html


@pytest.mark.once
def test_the_list_has_no_full_bar_for_a_failed_workflow(staff):
    order()
    html = staff("view_workflow").get(reverse("admin:horsies_django_workflow_changelist")).content.decode()
    assert "4 of 4" in html
    assert "<progress" not in html


@pytest.mark.once
def test_only_a_replaced_workflow_says_so_and_no_field_is_empty(staff):
    row = order()
    client = staff(*VIEW)

    html = page(client, row)
    Workflow.objects.filter(pk=row.pk).update(is_replaced=True)

    assert "was replaced by a new one" not in html
    assert '<div class="readonly">-</div>' not in html
    assert "was replaced by a new one" in page(client, row)


# Waiting and running.


def test_each_node_says_how_long_it_waited_and_how_long_it_ran(staff):
    html = page(staff(*VIEW), order())

    graph, timeline = html.partition("horsies-drawn")[2].split('<svg class="horsies-graph horsies-bars"')[:2]
    table = html.partition('<table class="horsies-nodes"')[2]
    for where in (graph, timeline, table):
        assert "waited 3.0 s, ran 5.0 s" in where, "reserve waited for a worker"
        assert "waited 1 min 22 s, ran 8.0 s" in where, "charge waited for a worker and two retries"
        assert "ran 2.0 s" in where, "validate did not wait"
    charge = timeline.partition("<title>charge")[2].partition("</a>")[0]
    assert re.findall(r'class="horsies-(waits|runs)"', charge) == ["waits", "runs"] * 3


def test_the_critical_path_parts_its_time_and_its_shares_add_up(staff):
    html = page(staff(*VIEW), order())

    path = part(html, 'id="horsies-flow-path"', "</ol>")
    assert "Of 1 min 40 s it waited 1 min 25 s (85 %) and ran 15 s (15 %)." in path
    assert "reserve waited 3.0 s, ran 5.0 s 8 %" in path
    steps = part(html, '<ol class="horsies-steps">', "</ol>")
    assert sum(map(int, re.findall(r"(\d+) %", steps))) == 100


def test_a_node_that_waits_for_a_retry_waits_and_does_not_run(staff):
    task_node = node("charge", 0, (1, 3), (5, 7), status="RUNNING")
    Task.objects.update(status="PENDING", started_at=None, claimed_at=None, next_retry_at=timezone.now())
    task_node["completed_at"] = None

    html = page(staff(*VIEW), workflow(task_node, status="RUNNING", open_count=1))

    assert re.search(r"waiting <span data-[^<>]+>\d+ d \d+ h</span>, ran 4.0 s", html)


def test_sleeps_and_events_wait_and_maps_run_from_their_first_item_on(staff):
    row = workflow(
        {"node_id": "nap", "kind": "sleep", "status": "COMPLETED", "started_at": at(0), "completed_at": at(30)},
        {"node_id": "go", "kind": "event", "status": "COMPLETED", "started_at": at(0), "completed_at": at(60)},
        {"node_id": "all", "kind": "map", "status": "COMPLETED", "started_at": at(0), "completed_at": at(20)},
        node("all[0]", 0, (5, 20), map_index=2),
        node("all[1]", 0, (4, 9), map_index=2),
        status="COMPLETED",
        seconds=60,
    )

    html = page(staff(*VIEW), row).partition("horsies-bars")[2]

    for title in (
        "nap, Completed, waited 30 s",
        "go, Completed, waited 1 min 0 s",
        "all, Completed, waited 4.0 s, ran",
    ):
        assert f"<title>{title}" in html


@pytest.mark.once
def test_a_node_of_a_subworkflow_runs_while_that_does(staff):
    outer = workflow(
        {"node_id": "sub", "kind": "subworkflow", "status": "COMPLETED", "started_at": at(0), "completed_at": at(50)},
        status="COMPLETED",
        seconds=50,
    )
    workflow(status="COMPLETED", root_id=outer.pk, depth=1, parent=WorkflowTask.objects.get(workflow=outer), seconds=50)
    Workflow.objects.filter(depth=1).update(started_at=at(20))

    assert "sub, Completed, waited 20 s, ran 30 s" in page(staff(*VIEW), outer)


@pytest.mark.once
def test_a_failed_workflow_with_everything_on_its_page_needs_few_statements(staff):
    outer = order()
    client = staff(*VIEW, "retry_workflow")
    page(client, outer)

    with CaptureQueriesContext(connection) as captured:
        page(client, outer)

    assert len(captured) <= 14


# From the overview to the retry.


def overview(client):
    return client.get(reverse("admin:horsies_django_overview_changelist")).content.decode()


def test_the_overview_lists_the_newest_workflows_that_failed_lately(staff):
    fresh, old = order(), order()
    Workflow.objects.filter(pk=fresh.pk).update(completed_at=timezone.now() - timedelta(minutes=3))
    Workflow.objects.filter(pk=old.pk).update(completed_at=timezone.now() - timedelta(days=2))

    html = overview(staff(*VIEW))

    assert "Failed in the last 24 hours" in html
    assert re.search(rf'href="[^"]*{fresh.pk}/change/">shop.order</a></th><td>charge</td><td>DECLINED</td>', html)
    assert str(old.pk) not in html


@pytest.mark.once
def test_the_overview_lists_no_failed_workflow_to_users_who_may_not_view_it(staff):
    row = order()
    Workflow.objects.filter(pk=row.pk).update(completed_at=timezone.now())
    assert str(row.pk) not in overview(staff("view_task"))
