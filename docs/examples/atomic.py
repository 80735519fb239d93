"""Atomic tasks: the body, its sends and its Completed mark are one transaction."""

import project

project.setup()

from horsies_django import task
from horsies_django.testing import drain
from shop.models import Order


@task
def notify(item):
    print(f"notified: {item}")


@task(atomic=True, max_attempts=2, takes_context=True)
def order(context, item):
    Order.objects.create(item=item)
    notify.send(item)
    if context.attempt == 1:
        raise RuntimeError("the printer is out of paper")


handle = order.send("a pen")
print(drain())  # PENDING: the task waits for its retry
print(f"orders: {Order.objects.count()}")

print(drain(retries=True))
print(f"orders: {Order.objects.count()}, {handle.status()}")

# Output:
# 1 PENDING
# orders: 0
# notified: a pen
# 2 COMPLETED
# orders: 1, COMPLETED
