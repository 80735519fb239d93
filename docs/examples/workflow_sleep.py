"""Workflows: sleep between two steps without occupying a worker."""

from datetime import timedelta

import project

project.setup()

from horsies_django import Workflow, sleep, task
from horsies_django.testing import drain


@task
def welcome(user: str) -> None:
    print(f"Welcome, {user}!")


@task
def ask(user: str) -> None:
    print(f"{user}, do you like it?")


first, pause, last = welcome.node()(user="Ann"), sleep(timedelta(days=7)), ask.node()(user="Ann")
handle = Workflow("onboarding", {"first": first, "pause": pause, "last": last, "order": first >> pause >> last}).start()

drain()
print(handle.status(), "-", *handle.tasks().values())

drain(scheduled=True)  # without waiting seven days
print(handle.status(), "-", *handle.tasks().values())

# Output:
# Welcome, Ann!
# RUNNING - COMPLETED ENQUEUED PENDING
# Ann, do you like it?
# COMPLETED - COMPLETED COMPLETED COMPLETED
