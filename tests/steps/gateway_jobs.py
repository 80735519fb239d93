"""A body of ten steps: half are rows of the database, half are calls of a gateway that counts by key."""

from __future__ import annotations

import os
import random
import time

from horsies_django import TaskContext, task
from tests.jobs.entries import write_entry


def quote(key: str) -> int:
    """Return an amount that is another one each time."""
    write_entry(key)
    return random.randrange(1_000_000)


def charge(gateway: str, key: str, amount: int) -> int:
    """Write a line to the gateway's file, which no transaction takes back."""
    time.sleep(0.01)
    file = os.open(gateway, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{key} {amount}\n".encode())
    os.close(file)
    return amount


@task(takes_context=True, max_attempts=1)
def pays(context: TaskContext, gateway: str, number: int) -> int:
    total = 0
    for place in range(5):
        amount = context.step("quote", quote, f"{number} {place}", atomic=True)
        total += context.step("charge", charge, gateway, context.key("charge"), amount)
    return total
