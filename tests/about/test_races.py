"""Deletes, rollbacks, cascades and raw SQL of several threads, while workers run tasks about the rows."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction
from django.db.models import Count

from horsies_django import TASK_TERMINAL_STATES, TaskStatus
from horsies_django.db.clock import database_now
from horsies_django.models import Task
from tests.about.jobs import atouch, lock_and_count, touch
from tests.about.models import Customer, Order
from tests.conftest import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.sqlite]

BODIES = touch, atouch, lock_and_count


class Shop:
    """A thread's own customers, with what it has deleted and when that was committed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.customer = None
        self.deleted = {}
        self.rolled_back = 0

    def run(self, ends_at):
        try:
            while time.monotonic() < ends_at:
                self.random.choice([self.fill, self.fill, self.delete, self.delete, self.act])()
        finally:
            connection.close()
        return self

    def fill(self):
        with transaction.atomic():
            self.customer = Customer.objects.create()
            for order in [Order.objects.create(customer=self.customer) for _ in range(self.random.randrange(1, 5))]:
                self.send(order)

    def send(self, order):
        for body in self.random.choices(BODIES, k=self.random.randrange(4)):
            body.about(order).schedule(self.random.choice([0, 0, 0.2, 1]), order.pk)

    def orders(self):
        return [order for order in Order.objects.filter(customer=self.customer) if self.random.random() < 0.6]

    def delete(self):
        delete = self.random.choice([self.each, self.queryset, self.cascade, self.raw_sql])
        orders = list(Order.objects.filter(customer=self.customer)) if delete == self.cascade else self.orders()
        keys = [order.pk for order in orders]
        calls = [touch.about(order) for order in orders if self.random.random() < 0.2]
        with transaction.atomic():
            if keys:
                delete(orders)
            for call in calls:  # too late for the delete to see them
                call.send(call.about_row.key)
            if self.random.random() < 0.4:
                self.rolled_back += len(keys)
                transaction.set_rollback(True)
                return
        self.deleted.update(dict.fromkeys(keys, database_now("default")))
        if delete == self.cascade:
            self.customer = None

    def each(self, orders):
        for order in orders:
            order.delete()

    def queryset(self, orders):
        Order.objects.filter(pk__in=[order.pk for order in orders]).delete()

    def cascade(self, orders):
        Customer.objects.filter(pk=self.customer.pk).delete()

    def raw_sql(self, orders):
        with connection.cursor() as cursor:
            for order in orders:
                cursor.execute("DELETE FROM about_order WHERE id = %s", [order.pk])

    def act(self):
        for order in self.orders():
            tasks = Task.objects.about(order)
            self.random.choice([tasks.cancel, tasks.retry, tasks.run_now, lambda order=order: self.send(order)])()


def deadlocks():
    if connection.vendor == "sqlite":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return cursor.fetchone()[0]


@pytest.mark.parametrize("seconds", [8, pytest.param(600, marks=pytest.mark.nightly)])
def test_no_body_begins_without_its_row_and_no_rollback_cancels_a_task(worker, seconds):
    before = deadlocks()
    flags = "--threads", "3", "--async-slots", "2", "--poll-interval", "0.1"  # each busy slot has a connection
    workers = [worker(*flags, "--prefetch", prefetch) for prefetch in ("0", "4")]
    ends_at = time.monotonic() + seconds
    with ThreadPoolExecutor(4) as pool:
        shops = list(pool.map(lambda seed: Shop(seed).run(ends_at), random.sample(range(10**6), 4)))
    wait_until(lambda: not Task.objects.exclude(status__in=TASK_TERMINAL_STATES).exists(), 120)

    deleted = {str(key): at for shop in shops for key, at in shop.deleted.items()}
    of_deleted = Task.objects.filter(about_id__in=deleted)
    late = [task for task in of_deleted.filter(status=TaskStatus.COMPLETED) if task.claimed_at > deleted[task.about_id]]
    gone = Task.objects.filter(error_code="ABOUT_ROW_GONE")
    print(f"tasks={Task.objects.count()} deleted={len(deleted)} gone={gone.count()}", [s.rolled_back for s in shops])
    assert late == []
    assert not gone.exclude(about_id__in=deleted).exists()
    assert gone.exists()
    assert any(shop.rolled_back for shop in shops)
    assert deadlocks() == before
    assert not [process.output for process in workers if "deadlock" in process.output]
    counted = Task.objects.filter(task_name=lock_and_count.task_name, status=TaskStatus.COMPLETED)
    counts = dict(counted.values_list("about_id").annotate(Count("pk")).order_by())
    runs = {str(order.pk): order.runs for order in Order.objects.all()}
    assert {key: counts.get(key, 0) for key in runs} == runs
