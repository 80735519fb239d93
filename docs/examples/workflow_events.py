"""Workflows: wait for a person or a webhook without occupying a worker."""

import project

project.setup()

from horsies_django import Workflow, WorkflowHandle, task, wait_for_event
from horsies_django.testing import drain


@task
def write(topic: str) -> str:
    return f"a text about {topic}"


@task
def publish(text: str, editor: str) -> str:
    return f"{text}, approved by {editor}"


draft = write.node()(topic="queues")
approved = wait_for_event("approved", timeout=3 * 24 * 3600, waits_for=[draft])  # its value is the payload
published = publish.node()(text=draft, editor=approved)
handle = Workflow("publish", {"draft": draft, "approved": approved, "published": published}, output=published).start()

drain()
print(*handle.tasks().values())

WorkflowHandle(handle.id).send_event("approved", "Ada")  # in a view, with the id that you have stored
drain()
print(handle.value())

# Output:
# COMPLETED RUNNING PENDING
# a text about queues, approved by Ada
