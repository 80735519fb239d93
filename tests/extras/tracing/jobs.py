"""Tasks whose attempts end in every way."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from opentelemetry import baggage, trace

from horsies_django import Discard, Gather, Retry, RetryPolicy, Snooze, TaskError, TaskResult, task
from tests.jobs.models import Entry

tracer = trace.get_tracer("tests")


def _span_id() -> str:
    return format(trace.get_current_span().get_span_context().span_id, "016x")


@task
def plain(*args, **kwargs):
    with tracer.start_as_current_span("inside"):
        return {"span": _span_id(), "user": baggage.get_baggage("user")}


@task
async def aplain(*args, **kwargs):
    await asyncio.sleep(0)
    with tracer.start_as_current_span("inside"):
        return {"span": _span_id(), "user": baggage.get_baggage("user")}


@task
def fail():
    raise LookupError("no luck")


@task
async def afail():
    raise LookupError("no luck")


class Unprintable(Exception):
    """Cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@task
def fail_unprintably():
    raise Unprintable


@task(takes_context=True, max_attempts=3, backoff=0)
def fail_twice(context):
    if context.attempt < 3:
        raise LookupError("again")


@task(takes_context=True)
def ask_for_another(context):
    if context.attempt < 2:
        raise Retry("busy", after=0)


@task(retry_policy=RetryPolicy.fixed([1], auto_retry_for=["*"]))
def ask_without_end():
    raise Retry("busy", after=0)


@task(retry_policy=RetryPolicy.fixed([1], auto_retry_for=["*"]))
def ask_without_end_because_of_an_error():
    try:
        raise LookupError("no luck")
    except LookupError as error:
        raise Retry("busy", after=0) from error


@task(takes_context=True)
def snooze_once(context):
    if context.state is None:
        context.save("slept")
        raise Snooze(0)


@task
def discard():
    raise Discard("not needed")


@task
def return_an_error():
    return TaskResult(err=TaskError(error_code="NO_STOCK", message="none left"))


@task(timeout=0.3)
def sleep_too_long():
    for _ in range(1_000):
        time.sleep(0.01)


@task(timeout=0.3)
async def asleep_too_long():
    await asyncio.sleep(10)


@task
def hold(gate: str):
    Path(f"{gate}.begun").touch()
    while not Path(gate).exists():
        time.sleep(0.01)


@task
async def ahold(gate: str):
    Path(f"{gate}.begun").touch()
    while not Path(gate).exists():
        await asyncio.sleep(0.01)


@task
def send_another():
    plain.send()


@task
async def asend_another():
    await aplain.asend()


@task(atomic=True)
def write_atomically(key: str):
    Entry.objects.create(key=key)


@task(gather=Gather("all"))
def gathered(calls: list[dict[str, int]]): ...


@task
def numbers():
    return [1, 2]


@task
def number(item: int):
    return item


@task
def ask_for_later():
    raise Retry("busy", after=3_600)
