"""Many rows: each turn of a loop is a transaction, and a later run goes on after the last one."""

import project

project.setup()

from django.db.models import F, Value
from django.db.models.functions import Concat

from horsies_django import task
from horsies_django.testing import drain
from shop.models import Order


@task(takes_context=True, max_attempts=2, backoff=0)
def wrap(context):
    for turn in context.batches(Order.objects.all(), size=2):
        with turn as orders:
            keys = [order.pk for order in orders]
            Order.objects.filter(pk__in=keys).update(item=Concat(F("item"), Value(", wrapped")))
            if context.attempt == 1 and len(Order.objects.filter(item__endswith="wrapped")) == 4:
                raise RuntimeError("no paper")
            print(f"attempt {context.attempt}: {len(orders)} orders")


Order.objects.bulk_create([Order(item=f"pen {number}") for number in range(1, 6)])
handle = wrap.send()
drain(retries=True)
print(handle.status(), [order.item for order in Order.objects.order_by("pk")][:2])
print(Order.objects.filter(item__contains="wrapped, wrapped").exists())

# Output:
# attempt 1: 2 orders
# attempt 2: 2 orders
# attempt 2: 1 orders
# COMPLETED ['pen 1, wrapped', 'pen 2, wrapped']
# False
