"""Workflows: a task for each item of a list that another step returns."""

import project

project.setup()

from horsies_django import Workflow, task
from horsies_django.testing import drain


@task
def split(text: str) -> list[str]:
    return text.split()


@task
def measure(word: str, unit: str) -> str:
    return f"{len(word)} {unit}"


@task
def join(parts: list[str]) -> str:
    return ", ".join(parts)


words = split.node()(text="nobody knows how many there are")
lengths = measure.map(over=words, param="word", kwargs={"unit": "letters"})
joined = join.node()(parts=lengths)
handle = Workflow("lengths", {"words": words, "lengths": lengths, "joined": joined}, output=joined).start()

drain()
print(handle.value())
print(handle.result_for("lengths[2]").unwrap())
print(len(handle.tasks()), "nodes, items included")

# Output:
# 6 letters, 5 letters, 3 letters, 4 letters, 5 letters, 3 letters
# 3 letters
# 9 nodes, items included
