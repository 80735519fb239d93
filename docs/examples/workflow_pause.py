"""Workflows: pause, resume and cancel a run."""

import project

project.setup()

from horsies_django import OnError, Workflow, task
from horsies_django.testing import drain, run_next


@task
def step(name: str) -> None:
    print(f"step {name}")


@task
def fail() -> None:
    raise RuntimeError("no power")


first, second, third = (step.node()(name=name) for name in ["one", "two", "three"])
steps = Workflow("steps", first >> second >> third)

handle = steps.start()
run_next()
handle.pause()  # running tasks finish, no other task starts
print(drain(), "-", handle.status())
handle.resume()
print(drain(), "-", handle.status())

handle = steps.start()
run_next()
handle.cancel()
print(drain(), "-", handle.status(), *handle.tasks().values())

broken = fail.node()()
handle = Workflow("fragile", broken >> second, on_error=OnError.PAUSE).start()  # a failed step pauses the workflow
drain()
print(handle.status(), "-", handle.get().err.error_code)

# Output:
# step one
# nothing was due - PAUSED
# step two
# step three
# 2 COMPLETED - COMPLETED
# step one
# nothing was due - CANCELLED COMPLETED SKIPPED SKIPPED
# PAUSED - WORKFLOW_PAUSED
