"""Tasks about rows: found by their row, and cancelled with it."""

import project

project.setup(about={"shop.Order": {"on_delete": "cancel"}})

from django.db import connection, transaction
from django.db.models import Exists

from horsies_django import task
from horsies_django.models import Task
from horsies_django.testing import drain
from shop.models import Order


@task(one_at_a_time="about")
def remind(order_id):
    print(f"a reminder of order {order_id}")


pen, ink, nib = Order.objects.bulk_create([Order(item=item) for item in ("pen", "ink", "nib")])
handles = [remind.about(order).send(order.pk) for order in (pen, ink, nib)]
print("tasks of the pen:", Task.objects.about(pen).count())
waiting = Exists(Task.objects.pending().about_outer(Order))
print("orders with a waiting task:", Order.objects.filter(waiting).count())

with transaction.atomic():
    ink.delete()
    transaction.set_rollback(True)
print("after a rollback:", handles[1].status())
Order.objects.filter(item="ink").delete()
print("after a delete:", handles[1].status(), handles[1].info().error_code)

with connection.cursor() as cursor:
    cursor.execute("DELETE FROM shop_order WHERE item = 'nib'")  # sends no signal
print("after raw SQL:", handles[2].status())
drain()
print("no body without its row:", handles[2].status(), handles[2].info().error_code)

# Output:
# tasks of the pen: 1
# orders with a waiting task: 3
# after a rollback: PENDING
# after a delete: CANCELLED ABOUT_ROW_GONE
# after raw SQL: PENDING
# a reminder of order 1
# no body without its row: CANCELLED ABOUT_ROW_GONE
