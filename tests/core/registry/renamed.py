"""Tasks with explicit names, and with aliases from before their functions were renamed."""

from __future__ import annotations

from typing import Any

from horsies_django import Gather, TaskContext, Unique, Workflow, task


@task(name="mail.send", aliases=["tests.core.registry.old.send_mail", "mail.send_old"], takes_context=True)
def send_it(context: TaskContext, number: int = 0) -> list[Any]:
    return [context.task_result.task.name, number]


@task(name="mail.limited", max_concurrency=1, unique=Unique(by=("number",)))
def limited(number: int) -> int:
    return number


@task(name="mail.gathered", gather=Gather("all", max_size=2, max_delay=3_600))
def gathered(items: list[dict[str, Any]]) -> int:
    return len(items)


class Mailer:
    """A class with a task, which is not at the top of the module."""

    @staticmethod
    @task(name="mail.in_a_class")
    def send(number: int) -> int:
        return number


def workflow():
    one = send_it.node(node_id="one")(number=3)
    return Workflow("renamed", [one], output=one)
