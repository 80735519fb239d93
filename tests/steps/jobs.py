"""Bodies of long work. What they do outside of the database goes to a log of entries."""

from __future__ import annotations

import os
import signal

from horsies_django import RetryPolicy, TaskContext, task
from horsies_django.exceptions import StepFailed
from tests.jobs.entries import write_entry
from tests.jobs.models import Entry


class Refused(Exception):
    """A gateway refuses."""


def note(key: str) -> str:
    write_entry(key)
    return key


def refuse(key: str) -> None:
    write_entry(key)
    raise Refused(key)


def die_once(key: str) -> None:
    """Kill the runner, the first time."""
    is_first = not Entry.objects.filter(key=key).exists()
    write_entry(key)
    if is_first:
        os.kill(os.getpid(), signal.SIGKILL)


@task(takes_context=True, max_attempts=2, backoff=0)
def three_steps(context: TaskContext, fail_after: int) -> list[str]:
    names = []
    for number in range(3):
        names.append(context.step("note", note, f"step {number}"))
        if number == fail_after and context.attempt == 1:
            raise Refused(number)
    return names


@task(takes_context=True)
def dies_after_a_step(context: TaskContext) -> str:
    context.step("first", note, "first")
    die_once("death")
    return context.step("second", note, "second")


@task(takes_context=True)
def dies_at_once(context: TaskContext) -> None:
    die_once("death")


@task(takes_context=True)
def undone(context: TaskContext) -> str:
    """Keep an atomic step, and roll one back."""
    context.step("kept", note, "kept", atomic=True)
    try:
        context.step("lost", refuse, "lost", atomic=True)
    except StepFailed as error:
        return str(error.error.error_code)
    return "not refused"


@task(takes_context=True, exception_mapper={Refused: "REFUSED"})
def patient(context: TaskContext, delay: float) -> str:
    policy = RetryPolicy.constant(delay, max_retries=1, auto_retry_for=["REFUSED"])
    try:
        context.step("refused", refuse, "try", retry_policy=policy)
    except StepFailed as error:
        return str(error.error.error_code)
    return "not refused"


@task(takes_context=True)
def sleeps(context: TaskContext, delay: float) -> str:
    context.step("before", note, "before")
    context.sleep(delay)
    return context.step("after", note, "after")


@task(takes_context=True)
def restarts(context: TaskContext, left: int, keys: list[str] | None = None) -> list[str]:
    keys = [*(keys or []), context.key("note")]
    context.step("note", note, f"left {left}")
    if left:
        context.restart(left=left - 1, keys=keys)
    return keys
