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


words = split.node()(text="their number is known later")
lengths = measure.map(over=words, param="word", kwargs={"unit": "letters"})
joined = join.node()(parts=lengths)
handle = Workflow("lengths", {"words": words, "lengths": lengths, "joined": joined}, output=joined).start()

drain()
print(handle.value())
print(handle.result_for("lengths[2]").unwrap())
print(len(handle.tasks()), "nodes, items included")

# Output:
# 5 letters, 6 letters, 2 letters, 5 letters, 5 letters
# 2 letters
# 8 nodes, items included
