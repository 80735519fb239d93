"""Steps: a retry goes on after the last kept step, and an idempotency key stays the same."""

import project

project.setup()

from horsies_django import RetryPolicy, task
from horsies_django.exceptions import StepFailed
from horsies_django.testing import drain
from shop.models import Order

gateway = {"open": False}


class GatewayDown(Exception):
    """The gateway does not answer."""


def store(item):
    print(f"stored: {item}")
    return Order.objects.create(item=item).pk


def charge(order, key):
    print(f"charge: {'ok' if gateway['open'] else 'down'}")
    if not gateway["open"]:
        raise GatewayDown
    return key.partition(":")[2]


@task(takes_context=True, max_attempts=2, backoff=0, exception_mapper={GatewayDown: "GATEWAY_DOWN"})
def sell(context, item):
    order = context.step("store", store, item, atomic=True)  # the row and the record commit together
    key = context.key("charge")
    try:
        policy = RetryPolicy.constant(0, max_retries=1, auto_retry_for=["GATEWAY_DOWN"])
        return context.step("charge", charge, order, key, retry_policy=policy)  # twice in each attempt
    except StepFailed:
        gateway["open"] = True
        raise


handle = sell.send("a pen")
drain(retries=True)
print(handle.value(0), f"orders: {Order.objects.count()}")

# Output:
# stored: a pen
# charge: down
# charge: down
# charge: ok
# charge:1 orders: 1
