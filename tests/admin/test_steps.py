"""Steps and waits: on the task's page, in the list, in the diagnosis, in counts, and the action that sends an event."""

import re
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django import TaskStatus
from horsies_django.models import Task
from horsies_django.ops.inspector import tasks
from tests.admin import step_jobs
from tests.admin.client import address, html_of, log_in, messages_of
from tests.jobs.models import Item
from tests.steps import event_jobs

pytestmark = [pytest.mark.django_db, pytest.mark.once]

LIST = "/admin/horsies_django/task/"


@pytest.fixture
def staff(client):
    return log_in(client, "view_task", "view_workflow")


def table_of(html):
    """Return the text of each cell, row by row, of the table of steps."""
    body = html.partition('id="horsies-steps-table"')[2].partition("</table>")[0].partition("<tbody>")[2]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.S)
    return [
        [
            " ".join(unescape(re.sub("<[^>]*>", " ", cell)).split())
            for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.S)
        ]
        for row in rows
    ]


def columns(html, *places):
    return [tuple(row[place] for place in places) for row in table_of(html)]


@pytest.mark.slow
def test_the_page_lists_steps_and_waits_with_masked_results(staff, drain):
    handle = step_jobs.order.send()
    drain()

    html = html_of(staff, handle)

    assert columns(html, 0, 1) == [
        ("charge Step", "Completed"),
        ("fetch_token Step", "Completed"),
        ("note Step", "Completed"),
        ("event:approved Event", "Waiting"),
    ]
    (charge,), (token,), (note,), (event,) = columns(html, 2)
    assert "<b>ch_1</b>" in charge
    assert '"card": "********************"' in charge
    assert "4242" not in html
    assert "s3cret" not in html
    assert token == '"********************"'
    assert "x" * 300 in note
    assert event == ""
    assert "<b>ch_1" not in html


@pytest.mark.slow
def test_the_result_of_a_workflow_is_not_shown_where_its_masks_are_unknown(staff, drain):
    handle = step_jobs.waits_for_accounts.send()
    drain()

    html = html_of(staff, handle)

    (name, state, result) = columns(html, 0, 1, 2)[-1]
    assert name.startswith("workflow:")
    assert (state, "bytes" in result) == ("Completed", True)
    assert "DE02" not in html


def test_the_place_of_a_loop_is_not_shown(staff, drain):
    Item.objects.bulk_create([Item(text="secret 1"), Item(text="secret 2")])
    handle = step_jobs.loop.send()
    drain()

    html = html_of(staff, handle)

    ((result,),) = columns(html, 2)
    assert '"turns": 1' in result
    assert "secret" not in html


@pytest.mark.slow
def test_a_failed_step_shows_its_error(staff, drain):
    handle = step_jobs.refused.send()
    drain()

    html = html_of(staff, handle)

    assert columns(html, 0, 1, 2) == [("refuse Step", "Failed", "UNHANDLED_EXCEPTION <i>refused</i>")]
    assert "<i>refused" not in html


@pytest.mark.slow
def test_a_failed_step_with_a_large_error_shows_the_beginning_of_its_message(staff, drain):
    handle = step_jobs.refused.send("!" * 10_000)
    drain()

    ((result,),) = columns(html_of(staff, handle), 2)

    assert result.startswith("UNHANDLED_EXCEPTION <i>refused</i>!!!")
    assert len(result) < 1_000


def test_a_task_without_records_has_no_table(staff, drain):
    handle = step_jobs.many.send(0)
    drain()

    assert "Steps and waits" not in html_of(staff, handle)


@pytest.mark.slow
def test_many_records_are_cut_in_the_middle(staff, drain):
    few, many = step_jobs.many.send(49), step_jobs.many.send(130)
    drain()

    with CaptureQueriesContext(connection) as queries_of_few:
        html_of(staff, few)
    with CaptureQueriesContext(connection) as queries:
        html = html_of(staff, many)

    rows = table_of(html)
    assert [row[0] for row in rows[:3]] == ["note Step", "note #2 Step", "note #3 Step"]
    assert rows[50] == ["and 30 more"]
    assert [row[0] for row in rows[51:52] + rows[-1:]] == ["note #81 Step", "note #130 Step"]
    assert len(queries) == len(queries_of_few) + 2


@pytest.mark.slow
def test_the_page_says_what_a_task_waits_for_since_when_and_until_when(staff, drain):
    endless, limited = step_jobs.order.send(), step_jobs.order.send(3_600)
    drain()

    fields = [
        re.search(r'class="field-page_waits_for">.*?<dd>(.*?)</dd>', html_of(staff, handle)).group(1)
        for handle in (endless, limited)
    ]

    assert all("?waits_for=event%3Aapproved" in field for field in fields)
    assert re.search(r"since \d{4}-[\d: -]+<", fields[0])
    assert re.search(r"since \d{4}-[\d: -]+, until \d{4}-[\d: -]+<", fields[1])


def test_why_names_the_event_and_when_the_wait_ends_at_the_latest(drain):
    endless, limited, sleeping = step_jobs.order.send(), step_jobs.order.send(3_600), step_jobs.sleeper.send()
    drain()

    first = [tasks().show(handle.id).why[0] for handle in (endless, limited, sleeping)]

    assert first[0] == "It is waiting for the event approved."
    assert re.fullmatch(r"It is waiting for the event approved\. \(in .*\)", first[1])
    assert re.fullmatch(r"It is sleeping\. \(in .*\)", first[2])


@pytest.mark.slow
def test_the_list_has_a_tab_and_a_filter_for_what_tasks_wait_for(staff, drain):
    waiting, sleeping = step_jobs.order.send(), step_jobs.sleeper.send()
    drain()

    listed = staff.get(LIST).context["cl"]
    assert {str(tab.label): tab.count.number for tab in listed.state_tabs if tab.count}["Awaiting"] == 2

    response = staff.get(LIST, {"waits_for": "event:approved"})
    assert [row.pk for row in response.context["cl"].result_list] == [waiting.id]
    assert "Awaiting" in response.content.decode()
    assert "event:approved</a>" in response.content.decode()

    listed = staff.get(LIST, {"state": "awaiting"}).context["cl"]
    assert {row.pk for row in listed.result_list} == {waiting.id, sleeping.id}
    assert not staff.get(LIST, {"state": "scheduled"}).context["cl"].result_list


def test_waits_are_counted_apart_from_scheduled_tasks(drain):
    waiting, _ = step_jobs.order.send(), step_jobs.sleeper.send()
    drain()

    assert tasks().show(waiting.id).state == "awaiting"
    assert tasks().show(waiting.id).waits_for == "event:approved"
    assert len(tasks().list(status="awaiting")) == 2
    assert tasks().list(status="scheduled") == []
    assert Task.objects.scheduled().count() == 0


# The action that sends an event.


def act(client, handle, **posted):
    return client.post(address(handle, "do", "send_event"), posted)


@pytest.mark.slow
def test_an_event_is_sent_from_the_page_of_a_task_that_waits_for_it(client, drain):
    handle = step_jobs.order.send()
    drain()
    log_in(client, "view_task", "send_event_task")
    assert address(handle, "do", "send_event") in html_of(client, handle)

    form = client.get(address(handle, "do", "send_event")).content.decode()
    assert 'value="approved"' in form
    assert handle.status() == TaskStatus.PENDING

    response = act(client, handle, confirmed="1", name="approved", payload='{"by": "Ann"}')
    assert messages_of(response) == "Event sent to 1 task."
    drain()
    assert handle.value(0) == {"by": "Ann"}
    assert LogEntry.objects.get().get_change_message() == "Send event: approved."


def test_a_mistake_in_the_payload_is_shown_and_sends_nothing(client, drain):
    handle = step_jobs.order.send()
    drain()
    log_in(client, "view_task", "send_event_task")

    response = act(client, handle, confirmed="1", name="approved", payload="yes")

    assert "This is not valid JSON. A string needs double quotes." in response.content.decode()
    assert Task.objects.get().waits_for == "event:approved"


@pytest.mark.slow
def test_the_name_of_an_event_may_be_as_long_as_that_of_a_wait(client, drain):
    name = "n" * 249
    handle = event_jobs.waits.send(name)
    drain()
    log_in(client, "view_task", "send_event_task")

    response = act(client, handle, confirmed="1", name=f"{name}n", payload="1")
    assert "allowed: a text of 1 to 249 characters." in response.content.decode()
    assert messages_of(act(client, handle, confirmed="1", name=name, payload="1")) == "Event sent to 1 task."
    drain()

    assert handle.value(0) == [1]


def test_an_ended_task_gets_no_event_and_the_message_says_why(client, drain):
    handle = step_jobs.many.send(1)
    drain()
    log_in(client, "view_task", "send_event_task")
    assert address(handle, "do", "send_event") not in html_of(client, handle)

    response = act(client, handle, confirmed="1", name="approved", payload="1")

    assert "A task that has ended" in messages_of(response)
    assert not LogEntry.objects.exists()


def test_sending_an_event_needs_its_permission(client, drain):
    handle = step_jobs.order.send()
    drain()
    log_in(client, "view_task", "retry_task", "cancel_task", "change_task")

    assert act(client, handle, confirmed="1", name="approved", payload="1").status_code == 403
    assert address(handle, "do", "send_event") not in html_of(client, handle)


@pytest.mark.slow
def test_an_event_is_sent_to_all_selected_tasks(client, drain):
    handles = [step_jobs.order.send() for _ in range(2)]
    drain()
    log_in(client, "view_task", "send_event_task")
    selected = {"action": "send_event", "_selected_action": [str(handle.id) for handle in handles]}

    client.post(LIST, {**selected, "confirmed": "1", "name": "approved", "payload": "7"})
    drain()

    assert [handle.value(0) for handle in handles] == [7, 7]


# What the pages cost.


@pytest.mark.slow
@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="its planner tells")
@pytest.mark.parametrize("query", [{"waits_for": "event:approved"}, {"state": "awaiting"}])
def test_the_list_of_tasks_that_wait_reads_their_index(staff, drain, query):
    step_jobs.order.send()
    drain()
    with connection.cursor() as cursor, CaptureQueriesContext(connection) as queries:
        cursor.execute("SET enable_seqscan = off")
        staff.get(LIST, query)
        lists = [query["sql"] for query in queries if "WHERE" in query["sql"] and '"waits_for" ' in query["sql"]]
        plans = []
        for sql in lists:
            if sql.startswith("SELECT") and "horsies_tasks" in sql:
                cursor.execute(f"EXPLAIN {sql}")
                plans.append(str(cursor.fetchall()))
        cursor.execute("RESET enable_seqscan")

    assert any("horsies_task_waits_for" in plan for plan in plans)
