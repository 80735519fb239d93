"""Tasks about rows: what the row of a task is, and how the tasks of a row are found."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.db.models import Count, Exists, OuterRef, Subquery
from django.test.utils import CaptureQueriesContext
from django.utils.functional import SimpleLazyObject

from horsies_django import Every, TaskStatus, Unique, Workflow
from horsies_django.core.compat import InvalidTask
from horsies_django.exceptions import InvalidWorkflow
from horsies_django.models import Task
from horsies_django.ops.inspector.run_again import run_again
from horsies_django.schedules.declaration import DeclaredSchedule
from tests.about.jobs import alone, touch
from tests.about.models import Badge, Day, Invoice, Order, Page, Place, Restaurant, RushOrder, Seat, Ticket, Unlisted
from tests.jobs.entries import entries

pytestmark = pytest.mark.django_db(transaction=True)


def ids(handles):
    return {handle.id for handle in handles}


def ids_of(rows):
    return set(rows.values_list("pk", flat=True))


def saved_rows():
    order = Order.objects.create()
    return [
        order,
        Invoice.objects.create(order=order),
        Ticket.objects.create(),
        Seat.objects.create(row='b "7", ü\\', number=2, ticket=uuid4()),
        Place.objects.create(),
        Unlisted.objects.create(),
    ]


def test_a_task_is_about_the_row_that_its_sender_names():
    order = Order.objects.create()

    handle = touch.about(order).send(order.pk)

    task = Task.objects.get(pk=handle.id)
    assert (task.about_model, task.about_id) == ("about.Order", str(order.pk))


def test_a_plain_task_is_about_no_row():
    task = Task.objects.get(pk=touch.send(1).id)

    assert (task.about_model, task.about_id) == (None, None)


def test_all_ways_to_send_keep_the_row():
    order = Order.objects.create()
    about = touch.about(order)

    sent = [
        about.send(1),
        about.schedule(60, 1),
        about.with_options(priority=5).send(1),
        touch.with_options(unique_key="one").about(order).send(1),
        *about.send_many({"key": number} for number in range(3)),
    ]
    result = about.enqueue(1)

    assert ids_of(Task.objects.about(order)) == {*ids(sent), UUID(result.id)}
    assert touch.about_row is None


def test_tasks_of_a_row_are_found_by_an_instance_whatever_its_key():
    rows = saved_rows()
    sent = {row: {touch.about(row).send(1).id, touch.about(row).send(2).id} for row in rows}

    assert {row: ids_of(Task.objects.about(row)) for row in rows} == sent


def test_tasks_of_the_rows_of_a_queryset_are_found_in_one_statement():
    for row in saved_rows():
        sent = {touch.about(row).send(1).id}
        with CaptureQueriesContext(connection) as queries:
            found = ids_of(Task.objects.about_any(type(row).objects.all()))
        assert found == sent
        assert len(queries) == 1
        assert ids_of(Task.objects.about_any(type(row).objects.order_by("pk")[:1])) == sent
        assert ids_of(Task.objects.about_any(type(row).objects.none())) == set()


def test_rows_are_found_and_annotated_by_their_tasks():
    for row in saved_rows():
        model = type(row)
        sent = [touch.about(row).send(1).id for _ in range(2)]
        tasks = Task.objects.about_outer(model)
        last = Subquery(tasks.order_by("-pk").values("pk")[:1])
        rows = model.objects.filter(Exists(tasks)).annotate(last=last)
        assert [(found.pk, found.last) for found in rows] == [(row.pk, sent[-1])]
        assert not model.objects.filter(Exists(Task.objects.archived().about_outer(model))).exists()


def test_orders_with_a_failed_task_are_counted_by_one_query():
    orders = [Order.objects.create() for _ in range(3)]
    for order in orders[:2]:
        handle = touch.about(order).send(order.pk)
        Task.objects.filter(pk=handle.id).update(status=TaskStatus.CANCELLED, cancelled_at="2026-01-01T00:00Z")
    cancelled = Task.objects.filter(status=TaskStatus.CANCELLED).about_outer(Order)

    rows = Order.objects.annotate(has_cancelled=Exists(cancelled)).values_list("has_cancelled")

    assert dict(rows.annotate(count=Count("pk")).order_by()) == {True: 2, False: 1}


def test_a_task_about_a_proxy_is_about_its_model():
    order = RushOrder.objects.create()
    handle = touch.about(order).send(1)

    assert ids_of(Task.objects.about(Order.objects.get(pk=order.pk))) == {handle.id}
    assert ids_of(Task.objects.about_any(RushOrder.objects.all())) == {handle.id}
    assert RushOrder.objects.filter(Exists(Task.objects.about_outer(RushOrder))).count() == 1


def test_a_task_about_a_child_is_about_its_parent():
    restaurant = Restaurant.objects.create()
    handle = touch.about(restaurant).send(1)

    assert Task.objects.get(pk=handle.id).about_model == "about.Place"
    assert ids_of(Task.objects.about(Place.objects.get(pk=restaurant.pk))) == {handle.id}
    assert ids_of(Task.objects.about_any(Restaurant.objects.all())) == {handle.id}
    assert Restaurant.objects.filter(Exists(Task.objects.about_outer(Restaurant))).count() == 1


def test_a_row_can_be_reached_through_another_outer_row():
    order = Order.objects.create()
    invoice = Invoice.objects.create(order=order)
    touch.about(order).send(1)
    orders = Order.objects.filter(pk=OuterRef("pk")).filter(Exists(Task.objects.about_outer(Order)))

    assert list(Invoice.objects.filter(Exists(orders))) == [invoice]


def test_a_lazy_object_stands_for_its_row():
    order = Order.objects.create()
    lazy = SimpleLazyObject(lambda: order)

    handle = touch.about(lazy).send(1)

    assert ids_of(Task.objects.about(lazy)) == ids_of(Task.objects.about(order)) == {handle.id}


def test_a_call_that_replaces_another_is_about_its_own_row_or_none():
    first, second = Order.objects.create(), Order.objects.create()
    job = touch.with_options(unique=Unique(by=("task",), on_conflict="replace"))
    job.about(first).send(1)

    job.about(second).send(2)
    assert [task.about_row.key for task in Task.objects.all()] == [str(second.pk)]
    job.send(3)
    assert [task.about_row for task in Task.objects.all()] == [None]


def test_nodes_and_schedules_are_about_no_row():
    about = touch.about(Order.objects.create())

    with pytest.raises(InvalidWorkflow, match=r"about_row=RowRef.*; allowed: the task without about\(\)"):
        Workflow("of a row", [about.node()(key=1)])
    declared = DeclaredSchedule("of a row", about, Every(minutes=1))
    with pytest.raises(ValueError, match=r"its task is about about\.Order:\d+; allowed: a task without about\(\)"):
        declared.row("tests")


def test_a_task_that_runs_again_is_about_the_same_row():
    order = Order.objects.create()
    handle = touch.about(order).send(1)
    Task.objects.filter(pk=handle.id).cancel()

    again = run_again(Task.objects.get(pk=handle.id), [1], {}, task_id=uuid4())
    forked = handle.fork()

    assert ids_of(Task.objects.about(order)) == ids([handle, again, forked])


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: 5, TypeError, "about() got 5; allowed: an instance of a model."),
        (lambda: Order, TypeError, "allowed: an instance of a model."),
        (Order, ValueError, "a row of about.Order that is not saved; allowed: saved rows."),
        (Ticket, ValueError, "a row of about.Ticket that is not saved; allowed: saved rows."),
        (
            lambda: Day.objects.create(date="2026-01-01"),
            InvalidTask,
            "about.Day has a key of DateField; allowed: keys of integers, texts and UUIDs.",
        ),
        (
            lambda: Badge.objects.create(code="a"),
            InvalidTask,
            "about.Badge has a key of KeyOfItsOwn; allowed: keys of integers, texts and UUIDs.",
        ),
        (
            lambda: Page.objects.create(path="p" * 256),
            InvalidTask,
            "a row of about.Page has a key of 256 characters; allowed: 255.",
        ),
    ],
)
def test_only_a_saved_row_with_a_plain_key_can_have_tasks(make, error, words):
    row = make()
    with pytest.raises(error) as raised:
        touch.about(row)

    assert words in str(raised.value)
    assert not Task.objects.exists()


def test_a_deleted_row_can_have_no_new_task():
    order = Order.objects.create()
    order.delete()

    with pytest.raises(ValueError, match="not saved"):
        touch.about(order)


@pytest.mark.slow
def test_calls_about_one_row_run_one_at_a_time(drain):
    orders = [Order.objects.create() for _ in range(2)]
    for order in orders * 3:
        alone.about(order).send(order.pk)
    alone.send(0)

    keys = {task.about_id: task.limit_key for task in Task.objects.all()}
    assert keys == {
        None: None,
        **{str(order.pk): f"tests.about.jobs.alone:about.Order:{order.pk}" for order in orders},
    }
    assert Task.objects.blocked().count() == 4  # one about each order may run, and the one without a row
    drain()
    for order in orders:
        own = [key for key in entries() if key.startswith(f"{order.pk} ")]
        assert own == [f"{order.pk} begins", f"{order.pk} ends"] * 3


@pytest.mark.parametrize("options", [{"max_concurrency": 2}, {"concurrency_key": "{key}"}])
def test_one_at_a_time_stands_alone(options):
    from horsies_django import task

    with pytest.raises(InvalidTask, match="one_at_a_time is 'about'; allowed: one of them"):
        task(one_at_a_time="about", name="never", **options)(touch.func)
    with pytest.raises(InvalidTask, match="one_at_a_time is 'row'; allowed: 'about', or None"):
        task(one_at_a_time="row", name="never")(touch.func)
