"""Workflows: a chain in which each step gets the values of earlier steps."""

import project

project.setup()

from horsies_django import Workflow, task
from horsies_django.testing import drain


@task
def fetch(url: str) -> str:
    return "all the words"


@task
def count(page: str) -> int:
    return len(page.split())


@task
def save(page: str, words: int) -> str:
    return f"{page!r} has {words} words"


page = fetch.node()(url="https://example.com")  # a call that has not been made yet
words = count.node()(page=page)  # gets the value of the node, and waits for it
saved = save.node()(page=page, words=words)

handle = Workflow("import", {"page": page, "words": words, "saved": saved}, output=saved).start()
print(handle.status(), "-", *handle.tasks().values())

drain()
print(handle.status(), "-", *handle.tasks().values())
print(handle.value())
print(handle.result_for("words").unwrap())

# Output:
# RUNNING - ENQUEUED PENDING PENDING
# COMPLETED - COMPLETED COMPLETED COMPLETED
# 'all the words' has 3 words
# 3
