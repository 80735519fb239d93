"""A workflow's page says its error first, how long its nodes took, and which determine its end."""

import re
from datetime import timedelta
from html import unescape

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from horsies_django.models import Workflow, WorkflowTask
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


# Times, and the critical path.


def test_each_node_says_how_long_it_took_and_of_a_single_attempt_how_long_it_waited(staff):
    html = page(staff(*VIEW), order())

    graph, table = graph_of(html), html.partition('<table class="horsies-nodes"')[2]
    for title in ("validate, Completed, 2.0 s", "reserve, Completed, 8.0 s", "charge, Failed, 1 min 30 s"):
        assert f"<title>{title}" in graph
    assert "waited 3.0 s, ran 5.0 s" in table, "reserve waited for a worker"
    assert ">1 min 30 s<" in table, "charge ran three times"
    assert ">2.0 s<" in table, "validate did not wait"


def test_the_critical_path_names_its_nodes_with_their_share_of_the_whole_time(staff):
    html = page(staff(*VIEW), order())

    steps = part(html, '<ol class="horsies-steps">', "</ol>")
    assert "validate 2.0 s 2 % Completed reserve 8.0 s 8 % Failed charge 1 min 30 s 90 %" in steps
    assert graph_of(html).count('class="horsies-edge horsies-critical') == 2


@pytest.mark.once
def test_the_critical_path_follows_the_nodes_that_ended_last(staff):
    row = workflow(
        node("a", 0, (0, 1)),
        node("slow", 1, (1, 9), waits_for=[0]),
        node("fast", 1, (1, 3), waits_for=[0]),
        node("c", 9, (9, 10), waits_for=[1, 2]),
        status="COMPLETED",
        seconds=10,
    )
    assert path_of(page(staff(*VIEW), row)) == ["a", "slow", "c"]


@pytest.mark.once
def test_the_critical_path_omits_a_node_that_its_dependent_did_not_wait_for(staff):
    nodes = [node("a", 0, (0, 1)), node("b", 1, (1, 2), waits_for=[0]), node("late", 0, (0, 9))]
    row = workflow(*nodes, node("any", 2, (2, 10), waits_for=[1, 2], join="ANY"), status="COMPLETED", seconds=10)
    assert path_of(page(staff(*VIEW), row)) == ["a", "b", "any"]


@pytest.mark.once
def test_the_critical_path_of_a_running_workflow_ends_at_its_longest_running_node(staff):
    running = {"status": "RUNNING", "started_at": at(3)}
    row = workflow(
        node("a", 0, (0, 1)),
        node("b", 1, (1, 3), waits_for=[0]),
        {"node_id": "long", "waits_for": [1], **running},
        {"node_id": "other", "waits_for": [1], **running, "started_at": at(4)},
        {"node_id": "last", "waits_for": [2, 3]},
        status="RUNNING",
        open_count=3,
    )

    html = page(staff(*VIEW), row)

    assert path_of(html) == ["a", "b", "long"]
    assert "<title>long, Running, since 2026-01-01 09:00:03, on the critical path" in html


@pytest.mark.once
def test_a_graph_of_two_boxes_and_a_path_of_two_nodes_are_left_out(staff):
    html = page(staff(*VIEW), workflow(node("a", 0, (0, 1)), node("b", 1, (1, 2), waits_for=[0]), seconds=2))

    assert "horsies-drawn" not in html
    assert "horsies-steps" not in html


@pytest.mark.once
def test_a_graph_without_a_path_of_three_nodes_has_no_list_of_its_nodes(staff):
    html = page(staff(*VIEW), workflow(*(node(name, 0, (0, 1)) for name in "abc"), seconds=1))

    assert "horsies-drawn" in html
    assert "Critical path" not in html


@pytest.mark.once
def test_each_reason_that_holds_a_node_back_has_a_line_of_its_own(staff):
    row = workflow({"node_id": "nap", "kind": "sleep"}, status="PAUSED", open_count=1)

    assert "is resumed.<br>It is sleeping." in page(staff(*VIEW), row, "?node=0")


def graph_of(html):
    return html.partition('<svg class="horsies-graph')[2].partition("</svg>")[0]


def path_of(html):
    return re.findall(
        r'<a href="[^"]+">([^<]+)</a>', html.partition('<ol class="horsies-steps">')[2].partition("</ol>")[0]
    )


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
