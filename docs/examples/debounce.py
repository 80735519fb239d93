"""Debounce and throttle: many calls in a short time are one run."""

import project

project.setup()

from horsies_django import Unique, task
from horsies_django.testing import drain


@task(unique=Unique.debounce(30, max_wait="5m", by=("document",)))
def save_copy(document, text):
    print(f"{document}: {text}")  # 30 seconds after the last call, with its arguments


@task(unique=Unique.throttle("1h", by=("shop",)))
def ping(shop):
    print(f"ping {shop}")  # for the first call; calls in the next hour get its handle


for text in ["H", "He", "Hello"]:
    save_copy.send("letter", text)
print(drain())
print(drain(scheduled=True))  # without waiting 30 s

handles = [ping.send("Berlin") for _ in range(3)]
print([handle.replayed for handle in handles])
print(drain())
print(ping.send("Berlin").replayed)  # still within the hour, although the task has ended

# Output:
# nothing was due
# letter: Hello
# 1 COMPLETED
# [False, True, True]
# ping Berlin
# 1 COMPLETED
# True
