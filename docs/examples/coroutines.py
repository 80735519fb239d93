"""Coroutines: async tasks run concurrently on one event loop."""

import asyncio

import project
from asgiref.sync import async_to_sync
from django.core.management import call_command

project.setup()

from horsies_django import task
from shop.models import Order

running = most = 0


@task
async def order(item):
    global running, most
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.05)  # a request to another server
    await Order.objects.acreate(item=item)
    running -= 1
    return item.upper()


async def send():
    return [await order.asend(f"item {number}") for number in range(20)]


handles = async_to_sync(send)()
call_command("horsies_worker", drain=True, async_slots=50)

print(f"orders: {Order.objects.count()}, more than one at once: {most > 1}")
print(async_to_sync(handles[0].avalue)())

# Output:
# orders: 20, more than one at once: True
# ITEM 0
