"""Workflows: what happens after a failed step, and how to continue."""

from typing import Any

import project

project.setup()

from horsies_django import SuccessCase, SuccessPolicy, TaskError, TaskResult, Workflow, task
from horsies_django.testing import drain

stock = {"pen": 3}


@task
def count(item: str) -> int:
    return stock[item]


@task
def add(numbers: list[int]) -> int:
    return sum(numbers)


@task
def report(results: list[TaskResult[int, TaskError[Any]]]) -> str:
    return f"{sum(result.is_ok() for result in results)} of {len(results)} counted"


pens, books = count.node()(item="pen"), count.node()(item="book")
total = add.node()(numbers=[pens, books])  # takes values: skipped if one of them is missing
reported = report.node(allow_failed_deps=True)(results=[pens.result, books.result])  # takes results: runs in any case
nodes = {"pens": pens, "books": books, "total": total, "reported": reported}

handle = Workflow("stock", nodes, output=total).start()
drain()
print(handle.status(), "-", *handle.tasks().values())
print(handle.result_for("total").err.error_code, "-", handle.result_for("reported").unwrap())

stock["book"] = 4  # fix the cause
handle.retry()  # runs the failed nodes and the skipped nodes after them
drain()
print(handle.status(), handle.value())

del stock["book"]
policy = SuccessPolicy([SuccessCase(required=[reported], optional=[total])])
handle = Workflow("stock", nodes, output=reported, success_policy=policy).start()
drain()
print(handle.status(), handle.value())

# Output:
# FAILED - COMPLETED FAILED SKIPPED COMPLETED
# UPSTREAM_SKIPPED - 1 of 2 counted
# COMPLETED 7
# COMPLETED 1 of 2 counted
