"""Workflows: a step that runs only if a condition is met."""

import project

project.setup()

from horsies_django import Workflow, WorkflowContext, task
from horsies_django.testing import drain


@task
def weigh(parcel: str) -> int:
    return len(parcel)


@task
def ask_for_help(parcel: str) -> str:
    return f"two carry {parcel}"


@task
def deliver(parcel: str) -> str:
    return f"{parcel} is delivered"


def is_heavy(context: WorkflowContext) -> bool:  # called once, in a worker
    return context.result_for("weight").unwrap() > 5


for parcel in ["a pen", "a piano"]:
    weight = weigh.node()(parcel=parcel)
    help_ = ask_for_help.node(waits_for=[weight], run_when=is_heavy)(parcel=parcel)
    delivered = deliver.node(waits_for=[help_])(parcel=parcel)  # a step skipped by its condition has not failed
    handle = Workflow("deliver", {"weight": weight, "help": help_, "delivered": delivered}, output=delivered).start()
    drain()
    print(handle.value(), "-", *handle.tasks().values())
    print(handle.result_for("help").ok or handle.result_for("help").err.error_code)

# Output:
# a pen is delivered - COMPLETED SKIPPED COMPLETED
# CONDITION_NOT_MET
# a piano is delivered - COMPLETED COMPLETED COMPLETED
# two carry a piano
