"""Tasks about rows in the admin: the tasks on the page of a row, the row on the page of a task, and the filter."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html import unescape
from uuid import uuid4

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import path, reverse

from horsies_django.admin import TasksInline
from horsies_django.admin.tasks import row_tasks
from horsies_django.db.now import Now
from horsies_django.models import Task, TaskAttempt
from tests.about.jobs import touch
from tests.about.models import Customer, Invoice, Order, Place, Restaurant, RushOrder, Seat, Ticket
from tests.admin.client import log_in
from tests.conftest import ROOT

pytestmark = pytest.mark.django_db(transaction=True)

TASKS = "admin:horsies_django_task_changelist"
HOSTILE = '<script>alert("x")</script>'

#: A site without the queue's pages.
shop = admin.AdminSite(name="shop")
shop.register(Order, type("OrderAdmin", (TasksInline, admin.ModelAdmin), {}))
urlpatterns = [path("admin/", admin.site.urls), path("shop/", shop.urls)]


def page_of(client, row, site="admin"):
    """Return the HTML of the page of a row."""
    options = row._meta
    response = client.get(reverse(f"{site}:{options.app_label}_{options.model_name}_change", args=[row.pk]))
    assert response.status_code == 200
    return response.content.decode()


def table_of(html):
    """Return the part of a page with the tasks about its row; empty if there is none."""
    return html.partition("horsies-row-tasks")[2].partition("</fieldset>")[0]


def task_links(html):
    """Return the ids of the tasks that a part of a page links."""
    return re.findall(r'href="[^"]*/horsies_django/task/([0-9a-f-]{36})/change/[?"]', html)


def address_of(html, words):
    """Return the address of the only link with these words."""
    (address,) = re.findall(rf'<a href="([^"]*)">{re.escape(words)}</a>', html)
    return unescape(address)


def staff(client):
    """Log in a user who may view and change the shop, and view tasks."""
    shop = Permission.objects.filter(content_type__app_label="about").values_list("codename", flat=True)
    return log_in(client, "view_task", *shop)


def failed_task(row, **error):
    """Return a task about a row that has failed in its first attempt."""
    task = Task.objects.get(pk=touch.about(row).send(1).id)
    columns = {"status": "FAILED", "failed_at": Now(), "started_at": Now(), "attempt": 1, "claim": 1}
    Task.objects.filter(pk=task.pk).update(**columns, error_code=error.get("error_code", "DOWN"))
    times = {"due_at": Now(), "started_at": Now(), "finished_at": Now()}
    TaskAttempt.objects.create(task=task, attempt=1, outcome="FAILED", **times, **{"error_code": "DOWN", **error})
    return task


# The tasks on the page of a row.


def test_the_page_of_a_row_lists_its_latest_tasks_with_state_error_attempts_and_age(client):
    order, other = Order.objects.create(), Order.objects.create()
    failed = failed_task(order, exception_class="shop.errors.PaymentError", error_message="card declined")
    pending = touch.about(order).send(1)
    touch.about(other).send(1)

    table = table_of(page_of(staff(client), order))

    assert task_links(table) == [str(pending.id), str(failed.pk)]
    assert "horsies-status-failed" in table
    assert "Due" in table
    assert "<strong>DOWN PaymentError</strong>: card declined" in table
    assert "attempt 1/1" in table
    assert table.count("<time datetime=") >= 3


@pytest.mark.slow
def test_the_table_has_ten_tasks_and_takes_one_statement_by_the_index(client):
    order = Order.objects.create()
    client = staff(client)
    counts = []
    for number in (0, 1, 30):
        for _ in range(number):
            failed_task(order, error_message="x" * 10_000)
        with CaptureQueriesContext(connection) as captured:
            html = page_of(client, order)
        counts.append(len([query for query in captured if "horsies_tasks" in query["sql"]]))

    newest = Task.objects.about(order).order_by("-id").values_list("pk", flat=True)[: row_tasks.MAX_TASKS]
    assert counts == [1, 1, 1]
    assert task_links(html) == [str(key) for key in newest]
    assert len(html) < 40_000
    (statement,) = [query["sql"] for query in captured if "horsies_tasks" in query["sql"]]
    assert not re.search(r'"(args|kwargs|result|metadata|checkpoint|progress)"', statement)
    plan = plan_of(statement)
    assert "horsies_task_about" in plan
    assert not re.search(r"Seq Scan|SCAN horsies_tasks|Sort|TEMP B-TREE", plan), plan


def plan_of(statement):
    """Return the plan of a statement, on PostgreSQL without the scans that it prefers for small tables."""
    is_postgresql = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        for name in ("seqscan", "bitmapscan", "sort") if is_postgresql else ():
            cursor.execute(f"SET enable_{name} = off")
        cursor.execute(f"{'EXPLAIN' if is_postgresql else 'EXPLAIN QUERY PLAN'} {statement}".replace("%", "%%"), [])
        plan = "\n".join(map(str, cursor.fetchall()))
        for name in ("seqscan", "bitmapscan", "sort") if is_postgresql else ():
            cursor.execute(f"RESET enable_{name}")
    return plan


def test_who_may_not_view_tasks_gets_no_table_and_no_statement(client):
    order = Order.objects.create()
    touch.about(order).send(1)
    client = log_in(client, "view_order", "change_order")

    with CaptureQueriesContext(connection) as captured:
        html = page_of(client, order)

    assert "horsies" not in html
    assert not [query for query in captured if "horsies_tasks" in query["sql"]]


def test_who_may_only_view_the_row_gets_the_table(client):
    order = Order.objects.create()
    task = touch.about(order).send(1)

    html = page_of(log_in(client, "view_order", "view_task"), order)

    assert task_links(table_of(html)) == [str(task.id)]


def test_the_add_page_has_no_table(client):
    response = staff(client).get(reverse("admin:about_order_add"))

    assert response.status_code == 200
    assert not re.search(r"horsies-|horsies_django/\w+\.css", response.content.decode())


def test_a_row_without_tasks_says_so_and_links_no_list(client):
    table = table_of(page_of(staff(client), Order.objects.create()))

    assert "There are no tasks about this row." in table
    assert "href" not in table


def test_errors_and_names_are_escaped(client):
    order = Order.objects.create()
    task = failed_task(order, error_code=HOSTILE, exception_class=HOSTILE, error_message=HOSTILE)
    Task.objects.filter(pk=task.pk).update(task_name=HOSTILE)

    table = table_of(page_of(staff(client), order))

    assert "<script>" not in table
    assert table.count("&lt;script&gt;") >= 4


@pytest.mark.slow
def test_every_kind_of_key_and_of_model_has_its_tasks_on_its_page(client):
    order = Order.objects.create()
    rows = [
        order,
        RushOrder.objects.get(pk=order.pk),
        Restaurant.objects.create(),
        Ticket.objects.create(),
        Invoice.objects.create(order=order),
        Customer.objects.create(),
    ]
    client = staff(client)
    sent = {row: touch.about(row).send(1).id for row in rows[2:]}
    sent[rows[0]] = sent[rows[1]] = touch.about(rows[1]).send(1).id

    assert {row: task_links(table_of(page_of(client, row))) for row in rows} == {row: [str(sent[row])] for row in rows}
    parent = Place.objects.get(pk=rows[2].pk)
    assert task_links(table_of(page_of(client, parent))) == [str(sent[rows[2]])]


@pytest.mark.slow
def test_the_project_s_own_fields_stay_as_they_are_and_the_tasks_come_last(client):
    client = staff(client)
    order = Order.objects.create()
    customer, invoice = Customer.objects.create(name="Ada"), Invoice.objects.create(order=order)

    pages = {row: page_of(client, row) for row in (customer, invoice, RushOrder.objects.get(pk=order.pk))}

    headings = {row: re.findall(r'class="fieldset-heading">([^<]+)<', html) for row, html in pages.items()}
    assert list(headings.values()) == [["Who", "Tasks"], ["Tasks"], ["Tasks"]]
    assert all(html.count("horsies-row-tasks") == 1 for html in pages.values())
    assert 'name="name" value="Ada"' in pages[customer]
    assert f"Order no. {order.pk}" in pages[invoice]
    assert all("field-runs" in html for row, html in pages.items() if isinstance(row, RushOrder))


def test_a_row_is_saved_as_without_the_tasks_and_a_mistake_keeps_them(client):
    client, customer = staff(client), Customer.objects.create(name="Ada")
    touch.about(customer).send(1)
    address = reverse("admin:about_customer_change", args=[customer.pk])

    wrong = client.post(address, {"name": ""})
    right = client.post(address, {"name": "Grace"})

    assert len(task_links(table_of(wrong.content.decode()))) == 1
    assert right.status_code == 302
    assert Customer.objects.get().name == "Grace"


@pytest.mark.urls(__name__)
def test_a_site_without_the_queue_s_pages_shows_the_tasks_without_links(client):
    order = Order.objects.create()
    failed_task(order)

    table = table_of(page_of(staff(client), order, "shop"))

    assert "horsies-status-failed" in table
    assert "href" not in table


@pytest.mark.slow
def test_a_project_may_import_the_mixin_before_the_queue_s_pages_are_registered():
    code = """
import django
from django.conf import settings
from tests import settings as ours
apps = [name for name in ours.INSTALLED_APPS if name != "tests.about"]
ours.INSTALLED_APPS = ["tests.about", *apps]
django.setup()
from django.contrib import admin
from tests.about.models import Order
from horsies_django.models import Task
assert {Order, Task} <= set(admin.site._registry)
"""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}

    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)


# From the page of a row to the list, and from a task to its row.


@pytest.mark.slow
def test_the_link_below_the_table_lists_all_tasks_about_the_row(client):
    ticket, other = Ticket.objects.create(), Ticket.objects.create()
    sent = {str(touch.about(ticket).send(number).id) for number in range(12)}
    touch.about(other).send(1)
    touch.send(1)
    client = staff(client)

    address = address_of(page_of(client, ticket), "All tasks about this row")
    html = client.get(address).content.decode()

    assert set(task_links(html)) == sent
    assert f"About: about.Ticket:{ticket.pk}" in html


@pytest.mark.parametrize("value", ["about.Order", ":5", "about.Order:x", "\0", "a.B:\0", f"a.B:{'x' * 256}"])
def test_a_row_of_no_task_and_no_row_find_nothing(client, value):
    touch.about(Order.objects.create()).send(1)

    response = staff(client).get(reverse(TASKS), {"about": value})

    assert response.status_code == 200
    assert task_links(response.content.decode()) == []


def test_the_filter_reads_the_index_alone(client):
    order = Order.objects.create()
    touch.about(order).send(1)
    client = staff(client)

    with CaptureQueriesContext(connection) as captured:
        client.get(reverse(TASKS), {"about": f"about.Order:{order.pk}"})

    statements = [query["sql"] for query in captured if '"about_id" = ' in query["sql"]]
    assert statements
    for statement in statements:
        plan = plan_of(statement)
        assert "horsies_task_about" in plan, plan
        assert not re.search(r"Seq Scan on horsies_tasks|SCAN horsies_tasks", plan), plan


def test_the_page_of_a_task_links_its_row_and_all_tasks_about_it(client):
    ticket = Ticket.objects.create()
    task = Task.objects.get(pk=touch.about(ticket).send(1).id)
    client = staff(client)

    with CaptureQueriesContext(connection) as captured:
        html = page_of(client, task)

    assert address_of(html, f"about.Ticket {ticket.pk}") == reverse("admin:about_ticket_change", args=[ticket.pk])
    listed = client.get(address_of(html, "All tasks about this row")).content.decode()
    assert task_links(listed) == [str(task.pk)]
    assert not [query for query in captured if "about_ticket" in query["sql"]]


@pytest.mark.slow
def test_a_task_shows_its_row_as_text_if_there_is_no_page_of_it(client):
    seat = Seat.objects.create(row='b "7"', number=2, ticket=uuid4())
    composite = Task.objects.get(pk=touch.about(seat).send(1).id)
    hidden = Task.objects.get(pk=touch.about(Order.objects.create()).send(1).id)
    removed = Task.objects.create(task_name="t", about_model="sold.Removed", about_id=HOSTILE)
    client = log_in(client, "view_task")

    for task in (composite, hidden, removed):
        field = re.search(r'field-page_about"><dt>About</dt><dd>(.*?) · <a', page_of(client, task))[1]
        assert unescape(field) == f"{task.about_model} {task.about_id}"
        listed = client.get(address_of(page_of(client, task), "All tasks about this row")).content.decode()
        assert task_links(listed) == [str(task.pk)]


def test_a_task_whose_row_was_deleted_says_so(client):
    order = Order.objects.create()
    task = touch.about(order).send(1)
    order.delete()

    html = page_of(staff(client), Task.objects.get(pk=task.id))

    assert re.search(r'<dd>about.Order \d+ <span class="quiet">deleted</span> · <a', html)


def test_a_task_about_nothing_has_no_such_field(client):
    task = Task.objects.get(pk=touch.send(1).id)

    assert "field-page_about" not in page_of(staff(client), task)


def test_the_command_and_the_inspector_name_the_row(capsys):
    order = Order.objects.create()
    task = touch.about(order).send(1)

    call_command("horsies_task", "show", str(task.id))
    call_command("horsies_task", "show", str(task.id), "--json")

    *text, data = capsys.readouterr().out.splitlines()
    assert f"  about: about.Order:{order.pk}" in text
    assert json.loads(data)["about"] == f"about.Order:{order.pk}"
