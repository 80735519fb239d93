"""A task for each row of a queryset, which is read while the tasks are inserted."""

import project

project.setup()

from django.db.models import F

from horsies_django import task
from horsies_django.testing import drain
from shop.models import Order


@task
def pack(order_id, item):
    if order_id % 100 == 1:
        print(f"packed {item}")


Order.objects.bulk_create(Order(item=f"pen {number}") for number in range(1, 251))

# The columns are the keyword arguments: each has the name of a parameter.
handles = pack.send_many(Order.objects.order_by("pk").values("item", order_id=F("pk")))
print(len(handles), "tasks, the first of which is", handles[0].status())
print(drain())

try:
    pack.send_many(Order.objects.all())
except TypeError as error:
    print(error)

# Output:
# 250 tasks, the first of which is PENDING
# packed pen 1
# packed pen 101
# packed pen 201
# 250 COMPLETED
# send_many() got a queryset of Order (ModelIterable); allowed: one with .values(), which yields dicts.
