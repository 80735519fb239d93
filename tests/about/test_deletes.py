"""What a delete of a row does with the tasks about it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.db.models.signals import post_delete, pre_delete
from django.test.utils import CaptureQueriesContext

from horsies_django import TaskStatus
from horsies_django.core.compat import task_started
from horsies_django.models import Task, TaskAttempt
from horsies_django.signals import task_cancelled
from tests.about.jobs import atouch, delete_own, hold, lock_and_count, touch
from tests.about.models import (
    Customer,
    Document,
    Invoice,
    Order,
    Page,
    Place,
    Restaurant,
    RushOrder,
    Seat,
    Ticket,
    Unlisted,
)
from tests.conftest import wait_until
from tests.jobs.entries import entries

pytestmark = pytest.mark.django_db(transaction=True)

PENDING, CANCELLED = TaskStatus.PENDING, TaskStatus.CANCELLED


def statuses():
    return list(Task.objects.order_by("pk").values_list("status", "error_code"))


GONE = (CANCELLED, "ABOUT_ROW_GONE")
WAITS = (PENDING, None)


def test_a_row_whose_key_is_too_long_for_tasks_can_be_deleted():
    Page.objects.create(path="p" * 256).delete()

    assert not Page.objects.exists()


def restaurant():
    return Restaurant.objects.create()


DELETES = {
    "an instance": lambda: (Order.objects.create(), lambda row: row.delete()),
    "a queryset": lambda: (Order.objects.create(), lambda row: Order.objects.all().delete()),
    "a proxy": lambda: (Order.objects.create(), lambda row: RushOrder.objects.all().delete()),
    "a cascade": lambda: (
        Order.objects.create(customer=Customer.objects.create()),
        lambda row: Customer.objects.all().delete(),
    ),
    "a UUID": lambda: (Ticket.objects.create(), lambda row: row.delete()),
    "a composite key": lambda: (
        Seat.objects.create(row="b", number=1, ticket=uuid4()),
        lambda row: row.delete(),
    ),
    "a child": lambda: (restaurant(), lambda row: row.delete()),
    "a parent": lambda: (Place.objects.get(pk=restaurant().pk), lambda row: Place.objects.all().delete()),
}


@pytest.mark.parametrize("kind", DELETES)
def test_a_delete_cancels_the_pending_tasks_of_its_rows_in_its_transaction(kind):
    row, delete = DELETES[kind]()
    touch.about(row).send(1)
    touch.about(row).schedule(60, 1)
    touch.send(1)
    with transaction.atomic():
        delete(row)
        assert statuses() == [GONE, GONE, WAITS]
        transaction.set_rollback(True)
    assert statuses() == [WAITS, WAITS, WAITS]

    delete(type(row).objects.get())

    assert statuses() == [GONE, GONE, WAITS]
    error = Task.objects.first().result["err"]
    assert error["message"] == "The row that the task is about was deleted."


def test_the_settings_of_the_moment_count(settings):
    default = settings.TASKS["default"]
    row = Unlisted.objects.create()
    settings.TASKS = {"default": default | {"OPTIONS": {"about": {"about.Unlisted": {}}}}}
    touch.about(row).send(1)
    row.delete()
    assert statuses() == [GONE]

    settings.TASKS = {"default": default | {"OPTIONS": {"about": {"about.Unlisted": {"on_delete": "keep"}}}}}
    row = Unlisted.objects.create()
    touch.about(row).send(1)
    row.delete()
    assert statuses() == [GONE, WAITS]


def test_a_delete_that_keeps_the_parent_keeps_its_tasks():
    row = restaurant()
    touch.about(row).send(1)

    row.delete(keep_parents=True)

    assert statuses() == [WAITS]


@pytest.mark.parametrize("model", [Invoice, Unlisted])
def test_a_delete_keeps_the_tasks_of_other_models_and_they_run(model, drain):
    row = Invoice.objects.create(order=Order.objects.create()) if model is Invoice else Unlisted.objects.create()
    touch.about(row).send("kept")

    row.delete()
    drain()

    assert statuses() == [(TaskStatus.COMPLETED, None)]
    assert entries() == ["kept"]


def test_a_delete_that_is_rolled_back_to_a_savepoint_cancels_nothing():
    kept, gone = Order.objects.create(), Order.objects.create()
    touch.about(kept).send(1)
    touch.about(gone).send(1)

    with transaction.atomic():
        with transaction.atomic():
            kept.delete()
            transaction.set_rollback(True)
        gone.delete()

    assert statuses() == [WAITS, GONE]


def test_a_delete_that_fails_leaves_nothing_to_the_next_delete():
    first, second = Order.objects.create(), Order.objects.create()
    touch.about(first).send(1)
    touch.about(second).send(1)

    def refuse(instance, **kwargs):
        if instance.pk == second.pk:
            raise ValueError("not this one")

    pre_delete.connect(refuse, sender=Order)
    try:
        with pytest.raises(ValueError, match="not this one"):
            Order.objects.order_by("pk").delete()
    finally:
        pre_delete.disconnect(refuse, sender=Order)
    second.delete()

    assert statuses() == [WAITS, GONE]


def test_deletes_inside_of_a_delete_cancel_their_own_tasks():
    outer, inner = Order.objects.create(), Order.objects.create()
    touch.about(outer).send(1)
    touch.about(inner).send(1)
    seen = []

    def delete_another(instance, **kwargs):
        if instance.pk == outer.pk:
            inner.delete()
            seen.append(statuses())

    pre_delete.connect(delete_another, sender=Order)
    try:
        outer.delete()
    finally:
        pre_delete.disconnect(delete_another, sender=Order)

    assert seen == [[WAITS, GONE]]
    assert statuses() == [GONE, GONE]


@pytest.mark.slow
def test_many_rows_are_deleted_with_few_statements():
    orders = Order.objects.bulk_create([Order() for _ in range(2_500)])
    for order in orders[::50]:
        touch.about(order).send(1)

    with CaptureQueriesContext(connection) as queries:
        Order.objects.all().delete()

    of_tasks = [query["sql"] for query in queries if "horsies_tasks" in query["sql"]]
    assert Task.objects.filter(error_code="ABOUT_ROW_GONE").count() == 50
    assert len(of_tasks) <= 3 * 6, of_tasks


@pytest.mark.slow
def test_a_delete_without_tasks_looks_for_them_once_for_a_thousand_rows():
    Order.objects.bulk_create([Order() for _ in range(2_000)])

    with CaptureQueriesContext(connection) as queries:
        Order.objects.all().delete()

    assert sum("horsies_tasks" in query["sql"] for query in queries) == 2


def test_receivers_hear_of_each_cancelled_task():
    heard = []
    order = Order.objects.create()
    handle = touch.about(order).send(1)

    def hear(task_result, **kwargs):
        heard.append(task_result.id)

    task_cancelled.connect(hear)
    try:
        order.delete()
    finally:
        task_cancelled.disconnect(hear)

    assert heard == [str(handle.id)]


def remove(*models):
    """Delete all rows where no signal sees it."""
    with connection.cursor() as cursor:
        for model in models:
            cursor.execute(f"DELETE FROM {model._meta.db_table}")


@pytest.mark.parametrize("body", [touch, atouch, lock_and_count], ids=["plain", "async", "atomic"])
def test_no_body_begins_whose_row_was_removed_by_raw_sql(body, drain):
    order = Order.objects.create()
    handle = body.about(order).send(order.pk)
    remove(Order)

    drain()

    assert statuses() == [GONE]
    assert entries() == []
    assert not TaskAttempt.objects.exists()
    assert Task.objects.get().attempt == 1
    assert handle.get(0).err_value.error_code == "ABOUT_ROW_GONE"


@pytest.mark.parametrize("kind", ["a UUID", "a composite key", "a child"])
def test_bodies_begin_while_their_row_is_there(kind, drain):
    row, _delete = DELETES[kind]()
    touch.about(row).send("there")
    drain()
    assert entries() == ["there"]

    touch.about(row).send("gone")
    remove(*([Restaurant, Place] if kind == "a child" else [type(row)]))
    drain()
    assert entries() == ["there"]


def test_a_body_begins_although_a_soft_delete_hides_its_row(drain):
    document = Document.objects.create()
    touch.about(document).send("hidden")
    Document.objects.update(is_deleted=True)

    drain()

    assert entries() == ["hidden"]


def test_a_task_whose_model_has_another_kind_of_key_by_now_ends_without_its_row(drain):
    handle = touch.about(Ticket.objects.create()).send(1)
    Task.objects.filter(pk=handle.id).update(about_id="17")

    drain()

    assert statuses() == [GONE]


def test_a_row_that_is_deleted_while_its_task_starts_keeps_the_body_from_beginning(drain):
    order = Order.objects.create()
    touch.about(order).send(1)

    def delete(**kwargs):
        remove(Order)

    task_started.connect(delete)
    try:
        drain()
    finally:
        task_started.disconnect(delete)

    assert statuses() == [GONE]


def test_signals_of_other_code_outside_a_transaction_cancel_nothing():
    order = Order.objects.create()
    touch.about(order).send(1)

    for signal in (pre_delete, post_delete):
        signal.send(sender=Order, instance=order, using="default", origin=order)

    assert statuses() == [WAITS]


def test_a_task_that_was_cancelled_with_its_row_ends_so_again_when_it_is_retried(drain):
    order = Order.objects.create()
    touch.about(order).send(1)
    order.delete()

    assert Task.objects.retry() == 1
    drain()

    assert statuses() == [GONE]


def test_a_body_may_delete_the_row_that_it_is_about(drain):
    order = Order.objects.create()
    handle = delete_own.about(order).send(order.pk)
    other = touch.about(order).schedule(60, 1)

    drain()

    assert handle.get(0).ok_value == "deleted"
    assert other.get(0).err_value.error_code == "ABOUT_ROW_GONE"


@pytest.mark.slow
def test_a_running_body_is_asked_to_stop_after_the_commit(worker):
    order = Order.objects.create()
    hold.about(order).send(order.pk)
    process = worker("--threads", "2")
    wait_until(entries)

    with transaction.atomic():
        order.delete()
        assert statuses() == [(TaskStatus.RUNNING, None)]

    assert statuses() == [GONE]
    wait_until(lambda: "task revoked" in process.output)


def test_a_claimed_task_is_cancelled_after_the_commit():
    order = Order.objects.create()
    touch.about(order).send(1)
    with transaction.atomic():
        Task.objects.claim("w", start=0, prefetch=1)

    order.delete()

    assert statuses() == [GONE]


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite locks no rows: a writer locks the whole file")
def test_a_delete_waits_for_no_lock_of_a_task(drain):
    locked, free = Order.objects.create(), Order.objects.create()
    handle = touch.about(locked).send(1)
    touch.about(free).send(1)
    is_locked, may_end = threading.Event(), threading.Event()

    def lock():
        with transaction.atomic():
            list(Task.objects.select_for_update().filter(pk=handle.id))
            is_locked.set()
            may_end.wait(60)
        connection.close()

    with ThreadPoolExecutor(1) as pool:
        locking = pool.submit(lock)
        assert is_locked.wait(60)
        Order.objects.all().delete()
        assert statuses() == [WAITS, GONE]
        may_end.set()
        locking.result(60)

    drain()
    assert statuses() == [GONE, GONE]
