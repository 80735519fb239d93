"""Workflows: a definition as a class, and as a step of another workflow."""

import project

project.setup()

from horsies_django import Workflow, WorkflowDefinition, task
from horsies_django.testing import drain


@task
def split(text: str) -> list[str]:
    return text.split()


@task
def length(word: str) -> int:
    return len(word)


@task
def add(numbers: list[int]) -> int:
    return sum(numbers)


class Letters(WorkflowDefinition[int]):
    """Count the letters of a text."""

    class Meta:
        definition_key = "texts.letters"  # in the rows of running workflows: rename the class, never the key
        cases = [{"text": "some words"}]  # manage.py check builds these

    @classmethod
    def build_with(cls, *, text: str) -> Workflow[int]:
        words = split.node()(text=text)
        lengths = length.map(over=words)
        total = add.node()(numbers=lengths)
        return Workflow("letters", [words, lengths, total], output=total)


handle = Letters.build_with(text="just this").start()
drain()
print(handle.value())

first, second = (Letters.node()(text=text) for text in ["one text", "and another"])
total = add.node()(numbers=[first, second])
handle = Workflow("book", {"first": first, "second": second, "total": total}, output=total).start()
drain()
print(handle.value(), "-", *handle.tasks().values())

# Output:
# 8
# 17 - COMPLETED COMPLETED COMPLETED
