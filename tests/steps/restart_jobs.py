"""Tasks that restart with other arguments."""

from __future__ import annotations

from horsies_django import BatchHandle, Gather, TaskContext, task


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


@task(takes_context=True, gather=Gather("all", max_size=10, max_delay=60))
def restarts_with_fewer(context: TaskContext, calls: list[dict[str, int]]) -> list[dict[str, int]]:
    if len(calls) > 1:
        context.restart(calls=calls[1:])
    return calls
