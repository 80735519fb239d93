"""Workflows in the admin: the list, the page of a workflow with its graph, and the actions."""

import json
import re
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from horsies_django import Join, OnError, SuccessCase, SuccessPolicy, Workflow, sleep, wait_for_event
from horsies_django.admin.actions import bulk_action
from horsies_django.admin.workflows import nodes
from horsies_django.admin.workflows.admin import WorkflowAdmin
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as Row
from horsies_django.workflows.handle import WorkflowHandle
from tests.jobs import limited
from tests.workflows.bodies import Pair, Silent, echo, fail, flaky, flaky_item, no, record_evaluation
from tests.workflows.runs import children, claim_as_dead_worker, start_and_drain, states, value

pytestmark = [pytest.mark.django_db, pytest.mark.once]  # ``drain`` adds real transactions

LIST = "/admin/horsies_django/workflow/"
ACTIONS = ("pause", "resume", "cancel", "retry", "send_event")
ALL = ("view_workflow", *(f"{action}_workflow" for action in ACTIONS))


@pytest.fixture
def staff(client):
    """Log in a staff user with given permissions."""

    def log_in(*codenames):
        user, _ = get_user_model().objects.get_or_create(username="staff", defaults={"is_staff": True})
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client.force_login(user)
        return client

    return log_in


def address(handle, action=None):
    if action is None:
        return reverse("admin:horsies_django_workflow_change", args=[handle.id])
    return reverse("admin:horsies_django_workflow_do", args=[handle.id, action])


def page(client, handle, **query):
    response = client.get(address(handle), query)
    assert response.status_code == 200
    return response.content.decode()


def graph_in(html):
    """Return the SVG of the graph, without the other SVGs of the page."""
    _before, _marker, rest = html.partition('<svg class="horsies-graph')
    return rest.partition("</svg>")[0]


def rows_of(client, **query):
    return [row.pk for row in client.get(LIST, query).context["cl"].result_list]


def do(client, action, handle, **form):
    return client.post(address(handle, action), {"confirmed": "1", **form}, follow=True)


def log():
    return list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True))


def diamond(middle=None):
    a, d = echo.node(node_id="a")(value=1), echo.node(node_id="d")()
    return Workflow("diamond", a >> [echo.node(node_id="b")(), middle or echo.node(node_id="c")()] >> d)


def row(name="odd", *nodes, **more):
    """Create a workflow directly as rows, also rows that the engine would never write."""
    workflow = Row(name=name, **{"status": "RUNNING", "node_count": len(nodes), **more})
    workflow.root_id = workflow.pk
    workflow.save()
    WorkflowTask.objects.bulk_create(
        [
            WorkflowTask(workflow=workflow, **{"task_index": index, "node_id": f"n{index}", **node})
            for index, node in enumerate(nodes)
        ]
    )
    return WorkflowHandle(workflow.pk)


# The list.


@pytest.mark.slow
def test_the_list_shows_each_workflow_with_its_progress(staff, drain):
    start_and_drain(Workflow("failing", [fail.node(node_id="x")()]), drain)
    diamond().start()

    html = staff("view_workflow").get(LIST).content.decode()

    for text in ("diamond", "Running", "0 of 4", "failing", "Failed", "1 of 1", "NO", '<progress class="horsies'):
        assert text in html


@pytest.mark.slow
def test_the_list_is_newest_first_and_shows_subworkflows_only_on_request(staff, drain):
    first = diamond().start()
    outer = start_and_drain(Workflow("outer", [Silent.node(node_id="sub")()]), drain)
    (inner,) = children(outer)
    client = staff("view_workflow")

    assert rows_of(client) == [outer.id, first.id]
    assert rows_of(client, level="sub") == [inner.id]
    assert set(rows_of(client, level="all")) == {outer.id, first.id, inner.id}


@pytest.mark.slow
def test_filters_and_the_search_narrow_the_list(staff, drain):
    done, keyed = start_and_drain(diamond(), drain), Workflow("keyed", [echo.node()()], unique_key="k-1").start()
    client = staff("view_workflow")

    assert rows_of(client, state="completed") == [done.id]
    assert rows_of(client, name="keyed") == [keyed.id]
    assert rows_of(client, sent="hour") == [keyed.id, done.id]
    assert rows_of(client, q=str(done.id)) == rows_of(client, q="dia") == [done.id]
    assert rows_of(client, q="k-1") == [keyed.id]
    assert rows_of(client, q="nothing") == []


@pytest.mark.slow
def test_the_list_needs_as_many_queries_for_20_workflows_as_for_10(staff):
    client = staff(*ALL)
    counts = []
    for _ in range(2):
        for _ in range(10):
            row("one of many", {})
        with CaptureQueriesContext(connection) as captured:
            assert client.get(LIST).status_code == 200
        counts.append(len(captured))
    assert counts[0] == counts[1] <= 15


@pytest.mark.slow
def test_paging_the_list_shows_each_workflow_in_order(staff):
    keys = [row("many", {}).id for _ in range(60)][::-1]
    client = staff("view_workflow")

    first = client.get(LIST)
    second = client.get(LIST + first.context["cl"].older_url)
    back = client.get(LIST + second.context["cl"].newer_url)

    pages = [[each.pk for each in page.context["cl"].result_list] for page in (first, second, back)]
    assert pages == [keys[:50], keys[50:], keys[:50]]
    assert "Older" in first.content.decode()
    assert "Older" not in second.content.decode()


@pytest.mark.slow
def test_searching_an_id_also_finds_subworkflows(staff, drain):
    (inner,) = children(start_and_drain(Workflow("outer", [Silent.node(node_id="sub")()]), drain))

    assert rows_of(staff("view_workflow"), q=str(inner.id)) == [inner.id]


# The page.


@pytest.mark.slow
def test_the_page_draws_a_graph_with_a_link_for_each_node(staff, drain):
    handle = start_and_drain(diamond(), drain)

    html = page(staff("view_workflow", "view_task"), handle)

    assert html.count('<a class="horsies-node horsies-is-completed') == 4
    assert "4 of 4 nodes have finished" in html
    assert "3 nodes on the path that determines" in html
    task = WorkflowTask.objects.get(workflow=handle.id, node_id="b").task_id
    assert reverse("admin:horsies_django_task_change", args=[task]) in html
    assert "data-horsies-live " not in html
    assert "style=" not in html[html.index("horsies-flow") :]


@pytest.mark.slow
def test_the_graph_links_to_nodes_for_users_who_may_not_view_tasks(staff, drain):
    html = page(staff("view_workflow"), start_and_drain(diamond(), drain))
    assert "/horsies_django/task/" not in html[html.index("<svg") :]
    assert "?node=0#node" in html


@pytest.mark.slow
def test_the_page_polls_until_the_workflow_has_ended(staff, drain):
    handle = diamond().start()
    client = staff(*ALL)

    assert page(client, handle).count(" data-horsies-live") >= 4
    drain()
    assert "data-horsies-live " not in page(client, handle)


@pytest.mark.slow
def test_the_items_of_a_map_are_drawn_as_one_box_with_counts(staff):
    items = [{"map_index": 1, "status": "COMPLETED" if index < 900 else "RUNNING"} for index in range(1000)]
    last = {"waits_for": [1]}
    handle = row("maps", {"status": "COMPLETED"}, {"kind": "map", "status": "RUNNING", "waits_for": [0]}, last, *items)
    client = staff("view_workflow")

    html = page(client, handle)

    graph = graph_in(html)
    assert graph.count("<a ") == 3
    assert "Running: 900 Completed, 100 Running" in graph
    assert html.count("<tr id=") == 100
    items = page(client, handle, of="1")
    assert "n1<" in items
    assert "after=2.1001#nodes" in items  # the map and 99 running items
    assert page(client, handle, of="1", after="7.892").count("<tr id=") == 10


def test_many_similar_nodes_are_drawn_as_one_box(staff):
    fan = [{"waits_for": [0], "task_name": "shop.mail"} for _ in range(30)]
    handle = row("fan", {"status": "COMPLETED"}, *fan, {"waits_for": list(range(1, 31))})
    client = staff("view_workflow")

    html = page(client, handle)

    assert "30 × mail" in html
    assert graph_in(html).count("<a ") == 3
    assert page(client, handle, of="1").count("<tr id=") == 30


def test_the_nodes_of_one_box_are_listed_failed_first(staff):
    states = ["COMPLETED", "PENDING", "RUNNING", "FAILED"] * 8
    fan = [{"waits_for": [0], "task_name": "shop.mail", "status": state} for state in states]
    items = [{"map_index": 0, "status": state} for state in states]
    handles = {
        "fan": row("fan", {"status": "COMPLETED"}, *fan),
        "map": row("map", {"kind": "map", "status": "RUNNING"}, *items),
    }
    client = staff("view_workflow")

    for kind, handle in handles.items():
        html = page(client, handle, of="1" if kind == "fan" else "0")
        shown = re.findall(r'<td role="cell"><span class="horsies-status horsies-status-(\w+)">', html)
        if kind == "map":
            assert shown.pop(0) == "running", "the map is listed before its items"
        assert shown == ["failed"] * 8 + ["running"] * 8 + ["pending"] * 8 + ["completed"] * 8, kind


@pytest.mark.slow
def test_paging_through_the_nodes_of_one_box_shows_each_node_once(staff):
    states = ["COMPLETED", "FAILED", "RUNNING"] * 140
    fan = [{"waits_for": [0], "task_name": "shop.mail", "status": state} for state in states]
    items = [{"map_index": 0, "status": state} for state in states]
    client = staff("view_workflow")

    for handle, of, size in (
        (row("fan", {"status": "COMPLETED"}, *fan), "1", 420),
        (row("map", {"kind": "map", "status": "RUNNING"}, *items), "0", 421),
    ):
        seen, after = [], ""
        while after is not None:
            html = page(client, handle, of=of, after=after)
            seen += re.findall(r'<tr id="node-(\d+)"', html)
            after = next(iter(re.findall(r"after=([\d.]+)#nodes", html)), None)
        assert len(seen) == len(set(seen)) == size


@pytest.mark.slow
def test_the_page_needs_as_many_queries_for_500_nodes_as_for_5(staff, django_assert_max_num_queries):
    client = staff(*ALL, "view_task")
    counts = []
    for size in (5, 250, 500):
        chain = [{"waits_for": [index - 1] if index else [], "task_name": f"t{index}"} for index in range(size)]
        handle = row("chain", *chain)
        with CaptureQueriesContext(connection) as captured:
            html = page(client, handle)
        assert graph_in(html).count("<a ") == size
        counts.append(len(captured))
    assert counts[0] <= counts[1] == counts[2] <= 14


@pytest.mark.slow
def test_the_page_draws_no_graph_of_too_many_boxes_and_says_so(staff):
    handle = row(
        "chain", *({"waits_for": [index - 1] if index else [], "task_name": f"t{index}"} for index in range(700))
    )

    html = page(staff("view_workflow"), handle)

    assert not graph_in(html)
    assert "too large to draw" in html
    assert html.count("<tr id=") == 100


def test_the_page_draws_no_graph_of_too_many_edges_and_says_so(staff, monkeypatch):
    monkeypatch.setattr(nodes, "MAX_EDGE_CHARACTERS", 1_000)
    handle = row("tangle", *({"waits_for": list(range(index))} for index in range(30)))
    client = staff("view_workflow")

    with CaptureQueriesContext(connection) as captured:
        html = page(client, handle)

    assert not graph_in(html)
    assert "too large to draw" in html
    assert "Critical path" not in html
    assert html.count("<tr id=") == 30
    assert len(captured) <= 15


@pytest.mark.slow
def test_the_page_reads_no_large_column_of_all_nodes(staff, drain):
    handle = start_and_drain(diamond(), drain)
    client = staff(*ALL)
    with CaptureQueriesContext(connection) as captured:
        page(client, handle)

    of_nodes = [query["sql"] for query in captured if 'FROM "horsies_workflow_tasks"' in query["sql"]]
    assert of_nodes
    assert not any('"result"' in sql or '"kwargs"' in sql or '"metadata"' in sql for sql in of_nodes)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_node_says_why_it_or_its_task_waits(staff, drain):
    event, pause, last = wait_for_event("approved"), sleep(3600), echo.node(node_id="last")()
    handle = start_and_drain(Workflow("waits", [event, pause] >> last), drain)
    limits = [limited.one_per_user.node(node_id=f"n{index}")(user="a") for index in range(2)]
    limit = Workflow("limited", limits).start()
    client = staff("view_workflow")

    for of, node, text in (
        (handle, 0, "It is waiting for the event approved."),
        (handle, 1, "It is sleeping. (2"),
        (handle, 2, "It is waiting for other nodes: 2."),
        (limit, 0, "No worker that is online"),
        (limit, 1, "is reached: 1 of 1 in use."),
    ):
        assert text in shown(client, of, node)[0]


@pytest.mark.slow
def test_a_success_policy_is_shown_with_the_names_of_its_nodes(staff, drain):
    good, bad = echo.node(node_id="good")(), fail.node(node_id="bad")()
    policy = SuccessPolicy([SuccessCase(required=[bad]), SuccessCase(required=[good])])
    handle = start_and_drain(Workflow("w", [good, bad], success_policy=policy), drain)
    assert handle.status() == "COMPLETED"

    html = page(staff("view_workflow"), handle)

    policy_text = re.sub(r"\s|&quot;", "", html.partition("field-shown_policy")[2])
    assert "required:[bad]" in policy_text
    assert "required:[good]" in policy_text


@pytest.mark.slow
def test_one_node_is_shown_in_full(staff, drain):
    handle = start_and_drain(Workflow("w", [echo.node(node_id="a")(value={"<b>": 1})]), drain)

    html = page(staff("view_workflow"), handle, node="0")

    assert "Node a" in html
    assert "&quot;&lt;b&gt;&quot;: 1" in html
    assert "<b>" not in html


def shown(client, handle, node):
    """Return the visible part of a node's section, and the collapsed part."""
    html = page(client, handle, node=str(node))
    visible, _summary, stored = html.partition('id="node"')[2].partition("</section>")[0].partition("<details")
    return visible, stored


@pytest.mark.slow
def test_a_node_shows_its_main_facts_and_collapses_its_stored_row(staff, drain):
    bad, worse = fail.node(node_id="bad")(message="no more"), fail.node(node_id="worse")(message="none at all")
    late = echo.node(node_id="late", waits_for=[bad], allow_failed_deps=True, skip_when=record_evaluation)()
    handle = start_and_drain(Workflow("w", [bad, late, worse]), drain)
    client = staff("view_workflow", "view_task")

    visible, stored = shown(client, handle, 0)
    for text in ("Failed", "tests.workflows.bodies.fail", "Attempts", "1/1", "<h3>Arguments</h3>", "at the top"):
        assert text in visible
    task = WorkflowTask.objects.get(workflow=handle.id, node_id="bad").task_id
    assert reverse("admin:horsies_django_task_change", args=[task]) in visible
    for column in ("open_deps", "task_index", "is_decided"):
        assert column not in visible
    assert "open_deps" in stored
    after, _stored = shown(client, handle, 1)
    assert "also after failed or skipped nodes; unless tests.workflows.bodies.record_evaluation returns true" in after
    assert '<a href="?node=0#node">bad</a>' in after
    other, _stored = shown(client, handle, 2)
    assert "<h3>Error</h3>" in other
    assert "none at all" in other


def test_a_waiting_node_says_why_and_links_no_task_without_permission(staff, drain):
    first, event = echo.node(node_id="first")(), wait_for_event("e")
    two = echo.node(node_id="two", waits_for=[first, event], join=Join.QUORUM, min_success=2)()
    handle = start_and_drain(Workflow("w", [first, event, two]), drain)

    visible, _stored = shown(staff("view_workflow"), handle, 2)

    assert "It is waiting for other nodes: 1." in visible
    assert "when 2 of these have completed" in visible
    assert "/horsies_django/task/" not in visible


@pytest.mark.slow
def test_a_subworkflow_and_its_parent_link_to_each_other(staff, drain):
    outer = start_and_drain(Workflow("outer", [Silent.node(node_id="sub")()]), drain)
    (inner,) = children(outer)
    client = staff("view_workflow")

    assert address(inner) in page(client, outer)
    assert address(outer) in page(client, inner)


@pytest.mark.slow
def test_the_list_and_the_page_escape_every_stored_value(staff):
    bad = "<script>alert(1)</script>"
    handle = row(
        bad,
        {"node_id": bad, "status": "FAILED", "error_code": bad, "task_name": bad, "result": {"err": bad}},
        status="FAILED",
        error={"error_code": bad, "message": bad, "node_id": bad},
        result=bad,
        unique_key=bad,
    )
    client = staff(*ALL)

    for html in (page(client, handle), page(client, handle, node="0"), client.get(LIST).content.decode()):
        assert bad not in html
        assert "&lt;script&gt;" in html


@pytest.mark.slow
@pytest.mark.parametrize(
    "damaged",
    [
        [{"waits_for": [1]}, {"waits_for": [0]}],
        [{"kind": "odd", "map_index": 9, "status": "COMPLETED"}],
        [{"kind": "map", "map_index": 0, "status": "FAILED", "result": 7, "run_when": "x.y"}],
        [{"kind": "sleep", "status": "ENQUEUED"}, {"kind": "event", "status": "RUNNING"}],
        [{"join": "quorum", "open_deps": 3}, {"join": "odd", "open_deps": 2, "open_ctx": 1}],
        [],
    ],
)
@pytest.mark.once
def test_the_pages_of_damaged_workflows_open(staff, damaged):
    row("odd", *damaged)
    row("odd", *damaged, status="FAILED", error=[1], success_policy=3, open_count=99)
    client = staff(*ALL, "view_task")

    for query in ({"node": "0"}, {"of": "0", "node": "99999999999"}, {"state": "x", "after": "-1"}):
        for each in Row.objects.all():
            page(client, WorkflowHandle(each.pk), **query)
    assert client.get(LIST, {"level": "all"}).status_code == 200


# Actions.


@pytest.mark.slow
def test_a_workflow_is_paused_and_resumed(staff, drain):
    handle = diamond().start()
    client = staff(*ALL)

    assert "1 workflow paused." in do(client, "pause", handle).content.decode()
    assert handle.status() == "PAUSED"
    assert "1 workflow resumed." in do(client, "resume", handle).content.decode()
    drain()

    assert handle.status() == "COMPLETED"
    assert log() == ["Pause. State: RUNNING → PAUSED.", "Resume. State: PAUSED → RUNNING."]


@pytest.mark.slow
def test_cancel_asks_first_and_leaves_ended_workflows_alone(staff, drain):
    done, handle = start_and_drain(diamond(), drain), diamond().start()
    client = staff(*ALL)

    confirmation = client.post(address(handle, "cancel"))
    assert "Running tasks finish and keep their results" in confirmation.content.decode()
    assert handle.status() == "RUNNING"
    do(client, "cancel", handle)
    assert handle.status() == "CANCELLED"
    assert "1 was skipped" in do(client, "cancel", done).content.decode()
    assert log() == ["Cancel workflow. State: RUNNING → CANCELLED."]


@pytest.mark.slow
def test_running_bodies_can_be_cancelled_after_their_workflow(staff):
    handle = diamond().start()
    (task,) = claim_as_dead_worker(1)
    client = staff(*ALL)

    do(client, "cancel", handle)
    assert Task.objects.get(pk=task).status == "RUNNING"
    assert "Cancel and stop running tasks" in page(client, handle)
    do(client, "cancel_running", handle)

    assert Task.objects.get(pk=task).status == "CANCELLED"
    assert states(handle)["a"] == "FAILED"
    assert Row.objects.get(pk=handle.id).open_count == 0


@pytest.mark.slow
def test_retry_runs_failed_and_skipped_nodes_again(staff, drain):
    handle = start_and_drain(diamond(flaky.node(node_id="c")(key="k", fails=1)), drain)
    assert states(handle)["d"] == "SKIPPED"

    client = staff(*ALL)
    assert "2 nodes run again." in client.get(address(handle, "retry")).content.decode()
    assert "2 nodes run again." in do(client, "retry", handle).content.decode()
    drain()

    assert handle.status() == "COMPLETED"
    assert log() == ["Retry failed nodes. State: FAILED → RUNNING."]


@pytest.mark.slow
def test_one_failed_node_is_retried_alone(staff, drain):
    c, d = flaky.node(node_id="c")(key="c", fails=1), flaky.node(node_id="d")(key="d", fails=1)
    handle = start_and_drain(Workflow("two", [c, d]), drain)
    client = staff(*ALL)

    html = page(client, handle)
    url = reverse("admin:horsies_django_workflow_retry_node", args=[handle.id, 0])
    assert f'href="{url}"' in html
    with CaptureQueriesContext(connection) as captured:
        question = client.get(url).content.decode()
    assert "Retry c?" in question
    assert len(captured) <= 8
    assert states(handle) == {"c": "FAILED", "d": "FAILED"}
    response = client.post(url, follow=True)
    drain()

    assert "The node “c” was re-queued." in response.content.decode()
    assert states(handle) == {"c": "COMPLETED", "d": "FAILED"}
    assert log() == ["Retry c."]
    assert "1 was skipped" in client.post(url, follow=True).content.decode()


@pytest.mark.slow
def test_only_a_node_that_its_condition_has_skipped_has_no_button_to_retry_it(staff, drain):
    unwanted = echo.node(node_id="unwanted", run_when=no)()
    bad = fail.node(node_id="bad")(code="CONDITION_NOT_MET")
    after = echo.node(node_id="after", waits_for=[bad])()
    handle = start_and_drain(Workflow("three", [unwanted, bad, after]), drain)

    html = page(staff(*ALL), handle)

    urls = [reverse("admin:horsies_django_workflow_retry_node", args=[handle.id, index]) for index in range(3)]
    assert [f'href="{url}"' in html for url in urls] == [False, True, True]


@pytest.mark.slow
def test_one_item_of_a_map_is_retried_alone(staff, drain):
    numbers = echo.node(node_id="numbers")(value=[1, 2, 3])
    handle = start_and_drain(
        Workflow("maps", [numbers, flaky_item.map(over=numbers, kwargs={"key": "i", "fails": 1}, node_id="m")]), drain
    )
    item = WorkflowTask.objects.get(workflow=handle.id, node_id="m[0]")
    client = staff(*ALL)

    client.post(reverse("admin:horsies_django_workflow_retry_node", args=[handle.id, item.task_index]))
    drain()

    assert [states(handle)[f"m[{place}]"] for place in range(3)] == ["COMPLETED", "COMPLETED", "FAILED"]
    url = reverse("admin:horsies_django_workflow_retry_node", args=[handle.id, 1])
    assert "1 node runs again." in client.get(url).content.decode()
    assert "re-queued. 1 node runs again." in client.post(url, follow=True).content.decode()


@pytest.mark.slow
def test_retrying_a_subworkflow_says_how_many_nodes_below_it_run_again(staff, drain):
    sub = Pair.node(node_id="sub")(fails=1)
    handle = start_and_drain(Workflow("outer", [sub, echo.node(node_id="after", waits_for=[sub])()]), drain)
    client = staff(*ALL)

    url = reverse("admin:horsies_django_workflow_retry_node", args=[handle.id, 0])
    assert "2 nodes run again." in client.get(url).content.decode()
    assert "re-queued. 2 nodes run again." in client.post(url, follow=True).content.decode()
    drain()

    assert handle.status() == "COMPLETED"


@pytest.mark.slow
def test_an_event_is_sent_with_its_payload(staff, drain):
    event = wait_for_event("approved", node_id="approved")
    handle = start_and_drain(Workflow("w", [event], output=event), drain)
    client = staff(*ALL)

    confirmation = client.get(address(handle, "send_event")).content.decode()
    assert '<option value="approved">' in confirmation
    assert "This is not valid JSON." in do(client, "send_event", handle, name="approved", payload="{").content.decode()
    assert "This field is required." in do(client, "send_event", handle, payload="1").content.decode()
    assert "NUL" in do(client, "send_event", handle, name="approved", payload='["\\u0000"]').content.decode()
    assert handle.status() == "RUNNING"
    html = do(client, "send_event", handle, name="approved", payload=json.dumps({"by": "<ann>"})).content.decode()

    assert handle.status() == "COMPLETED"
    assert value(handle, "approved") == {"by": "<ann>"}
    assert "&lt;ann&gt;" in html
    assert log() == ["Send event: approved."]


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ('"\\ud800"', "lone surrogate"),
        ("1" * 5_000, "4300 digits"),
        ("[" * 100_000, "while decoding a JSON array"),
        ("[" * 990 + "]" * 990, "while decoding a JSON array|nested too deeply"),  # Python 3.14 decodes it
    ],
    ids=["lone surrogate", "too many digits", "very deep", "deep"],
)
def test_a_payload_that_cannot_be_stored_is_refused_and_kept_in_the_form(staff, drain, payload, error):
    handle = start_and_drain(Workflow("w", [wait_for_event("approved")]), drain)

    response = do(staff(*ALL), "send_event", handle, name="approved", payload=payload)

    assert response.status_code == 200
    html = unescape(response.content.decode())
    assert re.search(error, html)
    assert f">\n{payload}</textarea>" in html
    assert handle.status() == "RUNNING"


def test_resume_leaves_a_subworkflow_of_a_paused_workflow_alone(staff, drain):
    outer = Workflow("outer", [Silent.node(node_id="sub")()]).start()
    with transaction.atomic():
        outer.pause()
    inner = row("inner", {"status": "READY"}, status="PAUSED", depth=1)
    Row.objects.filter(pk=inner.id).update(root_id=outer.id, parent=WorkflowTask.objects.get(workflow=outer.id))

    html = do(staff(*ALL), "resume", inner).content.decode()

    assert inner.status() == "PAUSED"
    assert "1 was skipped" in html


@pytest.mark.slow
def test_an_action_applies_to_all_selected_workflows(staff, drain):
    done, first, second = start_and_drain(diamond(), drain), diamond().start(), diamond().start()

    response = staff(*ALL).post(
        LIST, {"action": "pause", "_selected_action": [str(each.id) for each in (done, first, second)]}, follow=True
    )

    assert [each.status() for each in (done, first, second)] == ["COMPLETED", "PAUSED", "PAUSED"]
    assert "2 workflows paused. 1 was skipped" in response.content.decode()


@pytest.mark.parametrize("damaged", [{"dependents": 3}, {"status": "PENDING", "completed_at": None, "waits_for": [7]}])
def test_retry_of_damaged_rows_changes_nothing_and_the_log_names_the_workflow(staff, caplog, damaged):
    failed = {"status": "FAILED", "completed_at": timezone.now()}
    handle = row("odd", failed, failed | damaged, status="FAILED", completed_at=timezone.now())
    before = states(handle)
    client = staff(*ALL)
    url = reverse("admin:horsies_django_workflow_retry_node", args=[handle.id, 1 if "dependents" in damaged else 0])

    assert "1 was skipped" in client.post(url, follow=True).content.decode()

    assert f"workflow can't be retried id={handle.id}" in caplog.text
    assert states(handle) == before


@pytest.mark.slow
def test_retry_reports_the_number_of_nodes_beside_that_of_skipped_workflows(staff, drain):
    done, failed = start_and_drain(diamond(), drain), start_and_drain(diamond(fail.node(node_id="c")()), drain)
    selected = {"action": "retry", "_selected_action": [str(done.id), str(failed.id)]}
    client = staff(*ALL)

    assert "2 nodes run again." in client.post(LIST, selected).content.decode()
    html = client.post(LIST, selected | {"confirmed": "1"}, follow=True).content.decode()

    assert "Failed nodes of 1 workflow re-queued. 2 nodes run again. 1 was skipped" in html


@pytest.mark.slow
def test_retry_counts_the_nodes_of_a_selected_subworkflow_once(staff, drain):
    outer = start_and_drain(Workflow("outer", [Pair.node(node_id="sub")(fails=1), fail.node(node_id="x")()]), drain)
    (inner,) = children(outer)
    selected = {"action": "retry", "_selected_action": [str(inner.id), str(outer.id)]}
    client = staff(*ALL)

    assert "3 nodes run again." in client.post(LIST + "?level=all", selected).content.decode()
    html = client.post(LIST + "?level=all", selected | {"confirmed": "1"}, follow=True).content.decode()

    assert "Failed nodes of 1 workflow re-queued. 3 nodes run again. 1 was skipped" in html
    assert states(outer) == {"sub": "RUNNING", "x": "ENQUEUED"}


@pytest.mark.slow
def test_retry_of_all_matching_workflows_reports_the_number_of_nodes(staff, monkeypatch, drain):
    monkeypatch.setattr(bulk_action, "WORK_SECONDS", 0)
    monkeypatch.setattr(WorkflowAdmin, "batch", 1)
    for _ in range(3):
        start_and_drain(diamond(fail.node(node_id="c")()), drain)
    client = staff(*ALL)

    assert "The numbers here are of workflows." in ask_about_all(client, "retry").content.decode()
    act_on_all(client, "retry")
    html = client.get(LIST).content.decode()

    assert "Failed nodes of 3 workflows re-queued. 6 nodes run again." in html


def ask_about_all(client, action):
    """Open the page that asks for confirmation of an action on all matching workflows."""
    first = str(Row.objects.first().pk)
    return client.post(LIST, {"action": action, "_selected_action": first, "select_across": "1", "index": "0"})


def act_on_all(client, action, **form):
    """Run an action on all matching workflows, confirm it, and continue until it is done; return the last request."""
    response = ask_about_all(client, action)
    while response.status_code == 200:
        fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', response.content.decode()))
        fields.pop("csrfmiddlewaretoken", None)
        response = client.post(LIST, {name: unescape(value) for name, value in fields.items()} | form)
        form = {}  # the following pages carry its fields along
    return response.wsgi_request


@pytest.mark.slow
def test_an_action_applies_to_all_matching_workflows_in_batches(staff, monkeypatch):
    monkeypatch.setattr(bulk_action, "WORK_SECONDS", 0)
    handles = [row("many", {}) for _ in range(50)]
    done = row("done", status="COMPLETED")
    client = staff(*ALL)

    html = client.post(
        LIST, {"action": "pause", "_selected_action": str(done.id), "select_across": "1", "index": "0"}
    ).content.decode()
    assert "Pause 51 workflows" in html
    act_on_all(client, "pause")

    assert {handle.status() for handle in handles} == {"PAUSED"}
    assert done.status() == "COMPLETED"
    assert [message.split(".")[0] for message in log()] == [
        "Pause, all matching rows: 19 changed, 1 skipped",
        "Pause, all matching rows: 20 changed, 0 skipped",
        "Pause, all matching rows: 11 changed, 0 skipped",
    ]


@pytest.mark.slow
def test_an_event_is_sent_to_all_matching_workflows_with_its_payload(staff, monkeypatch, drain):
    monkeypatch.setattr(bulk_action, "WORK_SECONDS", 0)
    monkeypatch.setattr(WorkflowAdmin, "batch", 1)
    event = wait_for_event("approved", node_id="approved")
    handles = [start_and_drain(Workflow("w", [event], output=event), drain) for _ in range(3)]

    act_on_all(staff(*ALL), "send_event", name="approved", payload='{"by": "<ann>"}')

    assert [value(handle, "approved") for handle in handles] == [{"by": "<ann>"}] * 3
    assert all(message.startswith("Send event: approved, all matching rows: 1 changed") for message in log())


@pytest.mark.slow
def test_retry_is_offered_only_where_nodes_would_run_again(staff, drain):
    failed = start_and_drain(Workflow("w", [fail.node()(), echo.node()()], on_error=OnError.PAUSE), drain)
    paused = diamond().start()
    with transaction.atomic():
        paused.pause()
    client = staff(*ALL)

    assert address(paused, "retry") not in page(client, paused)
    assert address(failed, "retry") in page(client, failed)


# Permissions.


@pytest.mark.slow
def test_each_action_needs_its_own_permission(staff, drain):
    handle = start_and_drain(Workflow("w", [fail.node()(), wait_for_event("e")], on_error=OnError.PAUSE), drain)
    assert handle.status() == "PAUSED"
    for action in ACTIONS:
        client = staff("view_workflow", *(f"{other}_workflow" for other in ACTIONS if other != action))
        assert do(client, action, handle, name="e").status_code == 403
        assert f'value="{action}"' not in client.get(LIST).content.decode()
        assert address(handle, action) not in page(client, handle)
    node = reverse("admin:horsies_django_workflow_retry_node", args=[handle.id, 0])
    client = staff("view_workflow", *(f"{action}_workflow" for action in ACTIONS if action != "retry"))
    assert client.post(node).status_code == client.get(node).status_code == 403
    assert node not in page(client, handle)
    assert handle.status() == "PAUSED"


@pytest.mark.slow
def test_users_who_may_only_view_workflows_see_no_action(staff, drain):
    handle = start_and_drain(Workflow("w", [fail.node()()]), drain)
    client = staff("view_workflow")

    assert 'name="action"' not in client.get(LIST).content.decode()
    assert '<button type="submit"' not in page(client, handle).split('id="content-main"')[-1]


def test_list_page_and_actions_need_the_view_permission(staff, client):
    handle = diamond().start()
    for url in (LIST, address(handle), address(handle, "pause")):
        assert client.get(url).status_code == 302
    staff("retry_workflow")
    for url in (LIST, address(handle), address(handle, "retry")):
        assert client.get(url).status_code == 403
    assert client.post(reverse("admin:horsies_django_workflow_retry_node", args=[handle.id, 0])).status_code == 403


@pytest.mark.slow
def test_a_get_request_performs_no_action(staff, drain):
    handle = start_and_drain(Workflow("w", [fail.node()()]), drain)
    client = staff(*ALL)

    for action in (*ACTIONS, "cancel_running"):
        client.get(address(handle, action), {"confirmed": "1", "name": "e"})
    client.get(reverse("admin:horsies_django_workflow_retry_node", args=[handle.id, 0]), {"confirmed": "1"})
    assert handle.status() == "FAILED"
    assert log() == []


def test_an_unknown_workflow_or_node_is_not_found(staff):
    handle = diamond().start()
    client = staff(*ALL)
    assert client.post(reverse("admin:horsies_django_workflow_retry_node", args=[handle.id, 99])).status_code == 404
    assert client.get(reverse("admin:horsies_django_workflow_change", args=["nonsense"])).status_code == 302
