"""Tasks whose body is a function of the test, for tests that run them in their own process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horsies_django import TaskContext, task

#: The body of both tasks; a coroutine function for the latter.
bodies: list[Callable[[TaskContext], Any]] = []


@task(takes_context=True)
def scripted(context: TaskContext) -> Any:
    return bodies[-1](context)


@task(takes_context=True)
async def ascripted(context: TaskContext) -> Any:
    return await bodies[-1](context)


#: The outcomes that the middleware has seen.
outcomes: list[str] = []


def recording(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Record how attempts end."""

    def around(call: Any) -> Any:
        try:
            return run(call)
        except BaseException as error:
            outcomes.append(call.outcome_of(error)[0])
            raise

    return around
