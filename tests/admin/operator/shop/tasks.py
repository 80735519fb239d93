"""The tasks that the large database names, and some that a test runs."""

from __future__ import annotations

import re
import time
from pathlib import Path

from horsies_django import TaskContext, task
from horsies_django.enqueue.task import register_task
from tests.admin.scale.sizes import APPS

_APPS = re.findall(r"'(\w+)'", APPS)


def handle_order(number: int, order: str, user_id: int, email: str, page: str = "") -> None:
    """Do nothing with an order."""


for _number in range(200):
    register_task(handle_order, name=f"shop.{_APPS[_number // 20]}.tasks.task_{_number:03}")


for _number in range(6):
    register_task(handle_order, name=f"shop.orders.tasks.step_{_number}")


@task(name="shop.orders.tasks.charge", queue_name="payments", sensitive={"token"})
def charge(order: int, user_id: int, token: str) -> None:
    """Do nothing with an order."""


@task(name="shop.stock.tasks.count", queue_name="stock", takes_context=True)
def count(context: TaskContext, gate: str) -> None:
    """Count until a file exists, and report the progress."""
    done = 0
    while not Path(gate).exists():
        done += 1
        context.progress(done % 100, 100, "items")
        time.sleep(0.05)


@task(name="shop.stock.tasks.refuse", queue_name="stock")
def refuse(order: int, reason: str = "sold out") -> str:
    """Fail unless the reason is empty."""
    if reason:
        raise ValueError(f"order {order}: {reason}")
    return f"order {order}"


@task(name="shop.stock.tasks.pack", queue_name="stock", takes_context=True)
def pack(context: TaskContext, order: int) -> None:
    """Pick the things of an order, wait until they are packed, and fail unless they fit."""
    picked = context.step("pick", abs, order)
    context.write(f"order {picked} is picked")
    box = context.wait_event("packed")
    context.write(f"order {picked} is in the box {box}")
    if box == "small":
        raise ValueError(f"order {picked} does not fit")
