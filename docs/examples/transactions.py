"""Transactions: a task is part of the transaction that sends it."""

import project
from django.db import transaction

project.setup()

from horsies_django import task
from horsies_django.testing import drain
from shop.models import Order


@task
def confirm(order_id):
    print(f"confirmed: {Order.objects.get(pk=order_id).item}")


def buy(item, card_is_valid):
    with transaction.atomic():
        order = Order.objects.create(item=item)
        confirm.send(order.pk)  # transaction.on_commit() is not needed
        if not card_is_valid:
            raise ValueError("the card is invalid")


try:
    buy("a book", card_is_valid=False)
except ValueError as error:
    print(f"rolled back: {error}")
print(f"orders: {Order.objects.count()}, tasks: {drain()}")

buy("a pen", card_is_valid=True)
print(f"orders: {Order.objects.count()}, tasks: {drain()}")

# Output:
# rolled back: the card is invalid
# orders: 0, tasks: nothing was due
# confirmed: a pen
# orders: 1, tasks: 1 COMPLETED
