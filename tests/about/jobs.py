"""Tasks about the rows of the shop."""

from __future__ import annotations

import time

from django.db.models import F

from horsies_django import task
from tests.about.models import Order
from tests.jobs.models import Entry


@task
def touch(key: object) -> None:
    """Leave the key behind."""
    Entry.objects.create(key=str(key))


@task
async def atouch(key: object) -> None:
    """The same, as a coroutine function."""
    await Entry.objects.acreate(key=str(key))


@task(atomic=True)
def lock_and_count(order_id: int) -> int:
    """Lock the order, and count the run in it."""
    Order.objects.select_for_update().get(pk=order_id)
    return Order.objects.filter(pk=order_id).update(runs=F("runs") + 1)


@task
def delete_own(order_id: int) -> str:
    """Delete the order that the task is about."""
    Order.objects.filter(pk=order_id).delete()
    return "deleted"


@task(one_at_a_time="about")
def alone(key: int) -> None:
    """Run alone about a row."""
    Entry.objects.create(key=f"{key} begins")
    Entry.objects.create(key=f"{key} ends")


@task
def hold(key: int) -> None:
    """Run until the worker interrupts it."""
    Entry.objects.create(key=str(key))
    while True:
        time.sleep(0.01)
