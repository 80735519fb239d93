"""Nodes of workflows that restart."""

from __future__ import annotations

from horsies_django import BatchHandle, TaskContext, task


@task
def gives(value: int) -> int:
    return value


@task(takes_context=True)
def restarts_with(context: TaskContext, value: int) -> int:
    if value == 1:
        context.restart(value=2)
    return value


@task(takes_context=True)
def restarts_while_paused(context: TaskContext, batch_id: str, text: str = "begun") -> str:
    if text == "begun":
        BatchHandle(batch_id).pause()
        context.restart(text="restarted")
    return text
