"""Tasks in the admin, for users who may only view them and for users who may act."""

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from horsies_django import RetryPolicy, TaskStatus
from horsies_django.models import Task
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

LIST = "/admin/horsies_django/task/"


def act(client, action, *handles, **more):
    return client.post(
        LIST, {"action": action, "_selected_action": [str(handle.id) for handle in handles]} | more, follow=True
    )


def page(client, handle):
    return client.get(reverse("admin:horsies_django_task_change", args=[handle.id])).content.decode()


@pytest.mark.slow
def test_the_list_shows_each_task_with_its_state(staff, drain):
    tasks.add.send(1)
    tasks.fail.send()
    drain()
    tasks.noop.send()

    html = staff("view_task").get(LIST).content.decode()

    for text in ("Completed", "Failed", "Due", "tests.jobs.tasks.add", "ValueError</strong>: no luck"):
        assert text in html
    done, failed, waiting = Task.objects.order_by("pk")
    for row, ended in ((done, done.completed_at), (failed, failed.failed_at), (waiting, None)):
        before, after = html.split(f'title="{row.pk}"')
        assert row.sent_at.isoformat() in after.partition("</tr>")[0]
        assert (ended or row.enqueued_at).isoformat() in before.rpartition("<tr>")[2]


@pytest.mark.slow
def test_the_task_page_shows_call_result_traceback_and_every_attempt(staff, drain):
    handle = tasks.flaky.send("<script>alert(1)</script>", 9)
    drain()

    html = page(staff("view_task"), handle)

    assert "********************" in html  # the argument is called "key"
    assert "<script>alert(1)</script>" not in html
    assert html.count("RuntimeError: attempt") >= 3
    assert "RuntimeError: attempt 3" in html
    assert "UNHANDLED_EXCEPTION" in html


def test_tasks_cannot_be_added_edited_or_deleted_in_djangos_own_forms(staff):
    handle = tasks.noop.send()
    client = staff("view_task", "add_task", "change_task", "delete_task")

    assert client.get(f"{LIST}add/").status_code == 403
    assert (
        client.post(reverse("admin:horsies_django_task_delete", args=[handle.id]), {"post": "yes"}).status_code == 403
    )
    client.post(reverse("admin:horsies_django_task_change", args=[handle.id]), {"status": "COMPLETED"})
    assert handle.status() == TaskStatus.PENDING


@pytest.mark.slow
def test_retry_changes_only_tasks_that_ended_without_success(staff, drain):
    failed, done = tasks.fail.send(), tasks.add.send(1)
    drain()
    waiting = tasks.noop.send()

    response = act(staff("view_task", "retry_task"), "retry", failed, done, waiting)

    assert [handle.status() for handle in (failed, done, waiting)] == ["PENDING", "COMPLETED", "PENDING"]
    assert "1 task re-queued. 2 were skipped" in response.content.decode()


@pytest.mark.slow
def test_cancel_changes_only_tasks_that_have_not_started(staff, drain):
    done = tasks.add.send(1)
    drain()
    waiting = tasks.noop.send()

    act(staff("view_task", "cancel_task"), "cancel", done, waiting)

    assert [done.status(), waiting.status()] == ["COMPLETED", "CANCELLED"]
    assert Task.objects.get(pk=waiting.id).error_code == "TASK_CANCELLED"


@pytest.mark.slow
def test_a_running_task_is_cancelled_after_confirmation(staff):
    running = tasks.noop.send()
    with transaction.atomic():
        Task.objects.claim("w", start=1)
    client = staff("view_task", "cancel_task")

    act(client, "cancel", running)
    assert running.status() == "RUNNING"
    act(client, "cancel_running", running)
    assert running.status() == "RUNNING"  # the first request asks for confirmation
    act(client, "cancel_running", running, confirmed="1")
    assert running.status() == "CANCELLED"


@pytest.mark.parametrize(
    ("progress", "shown"),
    [
        ({"done": 40, "total": 100, "message": "<b>rows</b>"}, 'value="40" max="100"></progress> 40/100 &lt;b&gt;rows'),
        ({"done": 40, "total": None, "message": ""}, ">40<"),
        ("damaged", ">-<"),
        ({"done": None, "total": "x"}, ">-<"),
    ],
)
def test_progress_is_shown_in_the_list_and_on_the_page(staff, progress, shown):
    handle = tasks.noop.send()
    Task.objects.filter(pk=handle.id).update(progress=progress, checkpoint={"row": 17})
    client = staff("view_task")

    assert shown in client.get(LIST).content.decode()
    html = page(client, handle)
    assert shown in html if shown != ">-<" else "field-page_progress" not in html
    assert "&quot;row&quot;: 17" in html


@pytest.mark.slow
@pytest.mark.parametrize("state", ["scheduled", "retrying", "due", "active", "failed", "completed", "nonsense"])
def test_asynqs_states_filter_the_list(staff, drain, state):
    retrying = tasks.fixed.with_options(retry_policy=RetryPolicy.fixed([60], auto_retry_for=["DOWN"]))
    done, failed, retried = tasks.add.send(1), tasks.fail.send(), retrying.send("retrying")
    drain()
    running = tasks.noop.send()
    with transaction.atomic():
        Task.objects.claim("w", start=1)
    handles = {
        "scheduled": tasks.noop.schedule(60),
        "retrying": retried,
        "due": tasks.noop.send(),
        "active": running,
        "failed": failed,
        "completed": done,
    }

    html = staff("view_task").get(LIST, {"state": state}).content.decode()

    shown = {name for name, handle in handles.items() if str(handle.id) in html}
    assert shown == {state} & set(handles)  # an unknown state finds nothing


@pytest.mark.slow
@pytest.mark.parametrize(
    ("permission", "action"),
    [("retry_task", "cancel"), ("retry_task", "cancel_running"), ("cancel_task", "retry")],
)
def test_each_action_needs_its_own_permission(staff, permission, action):
    handle = tasks.noop.send()
    if action == "retry":
        handle.cancel()
    before = handle.status()
    client = staff("view_task", permission)

    act(client, action, handle)

    assert handle.status() == before
    assert f'value="{action}"' not in client.get(LIST).content.decode()


def test_users_who_may_only_view_tasks_see_no_action(staff):
    tasks.noop.send()

    html = staff("view_task").get(LIST).content.decode()

    assert 'name="action"' not in html


def test_the_list_needs_the_view_permission(staff, client):
    assert client.get(LIST).status_code == 302
    assert staff().get(LIST).status_code == 403


def test_a_get_request_performs_no_action(staff):
    handle = tasks.noop.send()

    staff("view_task", "cancel_task").get(LIST, {"action": "cancel", "_selected_action": str(handle.id)})

    assert handle.status() == TaskStatus.PENDING


@pytest.mark.slow
def test_search_finds_tasks_by_id_name_prefix_and_status(staff):
    wanted, other = tasks.add.send(1), tasks.noop.send()
    client = staff("view_task")

    def found(term):
        return {row.pk for row in client.get(LIST, {"q": term}).context["cl"].result_list}

    assert found(str(wanted.id)) == found(wanted.id.hex) == found("tests.jobs.tasks.a") == {wanted.id}
    assert found("tests.") == {wanted.id, other.id}
    assert found("nothing") == set()
    other.cancel()
    assert found("state:cancelled") == found("STATE: Cancelled") == {other.id}
    assert found("state:pending") == {wanted.id}
    assert found("state:nothing") == set()


@pytest.mark.parametrize(
    "query", [{"state": "failed"}, {"queue_name": "emails"}, {"priority": "high"}, {"priority": "nonsense"}]
)
def test_filters_narrow_the_list(staff, query):
    failed = tasks.noop.send()
    Task.objects.filter(pk=failed.id).update(status="FAILED", failed_at="2026-01-01T00:00Z")
    emails = tasks.on_emails.send()
    high = tasks.noop.with_options(priority=7).send()
    expected = {
        "failed": {failed.id},
        "emails": {emails.id},
        "high": {high.id},
        "nonsense": set(),
    }[next(iter(query.values()))]

    rows = staff("view_task").get(LIST, query).context["cl"].result_list

    assert {row.pk for row in rows} == expected


def test_the_page_of_a_damaged_row_opens(staff):
    row = Task.objects.create(task_name="tests.jobs.tasks.echo", args={"not": "a list"}, result=["odd"], kwargs=3)

    html = page(staff("view_task"), row_handle(row))

    assert "tests.jobs.tasks.echo" in html


def row_handle(row):
    from horsies_django import TaskHandle

    return TaskHandle(row.pk)


@pytest.mark.slow
def test_with_20_000_tasks_the_list_needs_few_queries_and_bounded_counts(staff):
    template = tasks.noop.send()
    row = Task.objects.get(pk=template.id)
    Task.objects.bulk_create(
        [Task(task_name=row.task_name, queue_name="default") for _ in range(20_000)], batch_size=2_000
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    client = staff("view_task", "retry_task", "cancel_task")

    with CaptureQueriesContext(connection) as captured:
        response = client.get(LIST)

    assert response.status_code == 200
    assert len(captured) <= 12, [query["sql"] for query in captured]
    counts = [query["sql"] for query in captured if "COUNT(" in query["sql"] and "horsies_tasks" in query["sql"]]
    # There are no more held tasks than slots.
    assert all("LIMIT" in sql or "'RUNNING'" in sql for sql in counts), counts
    assert not any("DISTINCT" in query["sql"] for query in captured)
