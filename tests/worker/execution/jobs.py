"""Bodies that run long, do not stop, raise control exceptions, report progress or save state."""

from __future__ import annotations

import asyncio
import ctypes
import datetime
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from horsies_django import Discard, Retry, RetryPolicy, Snooze, task
from horsies_django.exceptions import TaskInterrupt
from tests.jobs.entries import FOREVER, wait_for_gate, write_entry
from tests.jobs.models import Entry


def count(key: str) -> int:
    return Entry.objects.filter(key=key).count()


def loop(seconds: float) -> None:
    """Take time in Python code, where an exception can come between any two steps."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        time.sleep(0.001)


# Timeouts.


@task
def traced() -> str:
    """Call a Python function under a tracer, as a debugger or coverage does."""
    sys.settrace(lambda *_: None)
    try:
        loop(0.01)
    finally:
        sys.settrace(None)
    return "traced"


@task
def spin(seconds: float = FOREVER) -> str:
    loop(seconds)
    return "in time"


@task
async def aspin(seconds: float = FOREVER) -> str:
    await asyncio.sleep(seconds)
    return "in time"


@task(timeout=30)
def unhurried(seconds: float) -> str:
    loop(seconds)
    return "in time"


@task(timeout=30)
async def aunhurried(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "in time"


@task(timeout=0.3)
def limited(seconds: float = FOREVER) -> str:
    loop(seconds)
    return "in time"


@task(timeout=0.3)
async def alimited(seconds: float = FOREVER) -> str:
    await asyncio.sleep(seconds)
    return "in time"


@task
def doze(seconds: float) -> str:
    """One long C call, then Python code until the end: an interrupt may come anywhere near the end."""
    limit = time.monotonic() + seconds
    time.sleep(max(0.0, seconds - 0.003))
    while time.monotonic() < limit:
        pass
    return "in time"


@task
def tidy(key: str) -> None:
    """Record in the database how it was interrupted."""
    try:
        try:
            try:
                write_entry(f"{key} began")
                loop(FOREVER)
            except Exception:
                write_entry(f"{key} caught it as an Exception")
        except TaskInterrupt as interrupt:
            write_entry(f"{key} {type(interrupt).__name__}")
            raise
    finally:
        write_entry(f"{key} cleaned up")


@task
async def atidy(key: str) -> None:
    try:
        try:
            await awrite_entry(f"{key} began")
            await asyncio.sleep(FOREVER)
        except asyncio.CancelledError:
            await awrite_entry(f"{key} CancelledError")
            raise
    finally:
        await awrite_entry(f"{key} cleaned up")


async def awrite_entry(key: str) -> None:
    await Entry.objects.acreate(key=key, pid=os.getpid(), at=time.time())


@task
def own_timeout() -> None:
    """Raise an exception that resembles the library's own."""
    raise TimeoutError("of the body")


TIMEOUTS = RetryPolicy.fixed([1], auto_retry_for=["TASK_TIMEOUT"], jitter=False)


@task(timeout=0.3, retry_policy=TIMEOUTS)
def slow_once(key: str) -> int:
    write_entry(key)
    if count(key) == 1:
        loop(FOREVER)
    return count(key)


@task(timeout=0.3, atomic=True)
def slow_atomic(key: str) -> None:
    write_entry(key)
    loop(FOREVER)


@task
def transact(depth: int = 20) -> None:
    """Enter and leave transactions forever."""
    while True:
        with transaction.atomic():
            for _ in range(depth):
                with transaction.atomic(savepoint=False):
                    pass


# Bodies that can not be stopped.


def sleep_in_c(seconds: float) -> None:
    time.sleep(seconds)


def usleep(seconds: float) -> None:
    ctypes.CDLL(None).usleep(ctypes.c_uint(int(seconds * 1_000_000)))


CALLS: dict[str, Callable[[float], None]] = {"sleep": sleep_in_c, "usleep": usleep}


def write_entry_despite_interrupts(key: str) -> None:
    """Write an entry even if the time limit passes first, as on a busy machine: the body must still get stuck."""
    while True:
        try:
            if not count(key):
                write_entry(key)
            return
        except TaskInterrupt:
            connection.close()


@task
def stuck(key: str, call: str = "sleep", seconds: float = FOREVER) -> str:
    write_entry_despite_interrupts(key)
    CALLS[call](seconds)
    return "at last"


@task
def stuck_until(key: str, fifo: str) -> str:
    """Block in one C call until the test opens the other end."""
    write_entry_despite_interrupts(key)
    os.close(os.open(fifo, os.O_RDONLY))
    return "at last"


@task
async def astuck(key: str, call: str = "sleep", seconds: float = FOREVER) -> str:
    with suppress(asyncio.CancelledError):
        await awrite_entry(key)
    CALLS[call](seconds)
    return "at last"


@task(takes_context=True, timeout=0.3, retry_policy=TIMEOUTS)
def stuck_once(context, key: str) -> int:
    if context.attempt == 1:
        write_entry_despite_interrupts(key)
        sleep_in_c(FOREVER)
    write_entry(key)
    return count(key)


@task
def hold(key: str, gate: str) -> str:
    write_entry(key)
    wait_for_gate(gate)
    return key


@task(takes_context=True, max_attempts=3, backoff=0)
def succeeds_at_last(context) -> list:
    if not context.is_last_attempt:
        raise RuntimeError("not yet")
    return [context.attempt, context.max_attempts]


# Bodies that are cancelled.


@task(takes_context=True)
def check_and_return(context, key: str) -> str:
    """Check whether the task is cancelled, and return."""
    write_entry(f"{key} began")
    while not context.is_cancelled:
        time.sleep(0.01)
    write_entry(f"{key} saw it")
    return "too late"


@task(takes_context=True)
def never_check(context, key: str) -> None:
    """Take a context and never check it."""
    write_entry(f"{key} began")
    try:
        loop(FOREVER)
    except TaskInterrupt as interrupt:
        write_entry(f"{key} {type(interrupt).__name__}")
        raise


@task(takes_context=True)
def checkpoints(context, key: str) -> None:
    """Call ``progress()`` again and again."""
    write_entry(f"{key} began")
    try:
        for done in range(10_000):
            context.progress(done)
            time.sleep(0.01)
    except TaskInterrupt as interrupt:
        write_entry(f"{key} {type(interrupt).__name__}")
        raise


@task(takes_context=True)
def saves(context, key: str) -> None:
    """Save once the task is cancelled: saving also checks for cancellation."""
    write_entry(f"{key} began")
    while not context.is_cancelled:
        time.sleep(0.01)
    try:
        context.save("never kept")
    except TaskInterrupt as interrupt:
        write_entry(f"{key} {type(interrupt).__name__}")
        raise


@task(takes_context=True)
async def acheck_and_return(context, key: str) -> str:
    await awrite_entry(f"{key} began")
    try:
        await asyncio.sleep(FOREVER)
    except asyncio.CancelledError:
        await awrite_entry(f"{key} {'saw it' if context.is_cancelled else 'did not see it'}")
    return "too late"


@task
def returns_when_interrupted(key: str) -> str:
    """Catch the interrupt and return a value."""
    write_entry(f"{key} began")
    try:
        loop(FOREVER)
    except TaskInterrupt:
        write_entry(f"{key} ended")
    return "too late"


@task(retry_policy=RetryPolicy.fixed([1], auto_retry_for=["*"], jitter=False))
def fails_when_interrupted(key: str) -> None:
    """Raise another error when interrupted, with a policy that retries every error."""
    write_entry(f"{key} began")
    try:
        loop(FOREVER)
    finally:
        write_entry(f"{key} ended")
        raise ValueError("while it cleaned up")


@task(retry_policy=RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False))
def taken_away(key: str, gate: str) -> str:
    """Wait for a gate in each attempt; write an entry if interrupted."""
    attempt = count(f"{key} began") + 1
    write_entry(f"{key} began")
    try:
        wait_for_gate(gate)
    except TaskInterrupt as interrupt:
        write_entry(f"{key} {attempt} {type(interrupt).__name__}")
        raise
    return f"attempt {attempt}"


# Control exceptions.


@task
def raises_retry(key: str, times: int = 99, after: float | None = 0) -> int:
    write_entry(key)
    if count(key) <= times:
        raise Retry(f"not yet: {count(key)}", after=after)
    return count(key)


@task
async def araises_retry(key: str, times: int = 99) -> int:
    await awrite_entry(key)
    runs = await Entry.objects.filter(key=key).acount()
    if runs <= times:
        raise Retry(after=0)
    return runs


@task(max_attempts=3, backoff=40)
def raises_retry_with_backoff() -> None:
    raise Retry


@task(exception_mapper={ConnectionError: "DOWN"})
def raises_retry_because_of(kind: str) -> None:
    try:
        raise {"connection": ConnectionResetError, "value": ValueError}[kind]("no luck")
    except (ConnectionError, ValueError) as error:
        raise Retry("later", after=0) from error


@task(exception_mapper={ConnectionError: "DOWN"})
def raises_retry_while_handling() -> None:
    try:
        raise ConnectionResetError("no luck")
    except ConnectionError:
        raise Retry("later", after=0)  # noqa: B904  # without a cause


@task(takes_context=True)
def raises_snooze(context, key: str, times: int, seconds: float = 0) -> list[int]:
    write_entry(f"{key} attempt {context.attempt}")
    runs = Entry.objects.filter(key__startswith=f"{key} ").count()
    if runs <= times:
        raise Snooze(seconds)
    return [runs, context.attempt]


@task
async def araises_snooze(key: str) -> int:
    await awrite_entry(key)
    if (runs := await Entry.objects.filter(key=key).acount()) <= 2:
        raise Snooze(0)
    return runs


@task(takes_context=True, max_attempts=3, backoff=0)
def fails_snoozes_ends(context, key: str) -> list[int]:
    write_entry(key)
    runs = count(key)
    if runs == 1:
        raise RuntimeError("first")
    if runs == 2:
        raise Snooze(0)
    return [runs, context.attempt]


@task(max_attempts=5, backoff=0)
def raises_discard(key: str) -> None:
    write_entry(key)
    raise Discard("no longer needed")


@task(max_attempts=5, backoff=0)
async def araises_discard(key: str) -> None:
    await awrite_entry(key)
    raise Discard("no longer needed")


CONTROL_EXCEPTIONS: dict[str, Callable[[], Exception]] = {
    "retry": lambda: Retry(after=600),
    "snooze": lambda: Snooze(600),
    "discard": lambda: Discard("no"),
}


@task(atomic=True)
def raises_atomically(key: str, name: str) -> None:
    write_entry(key)
    raise CONTROL_EXCEPTIONS[name]()


@task
def raises_invalid_delay(name: str, value: float) -> None:
    raise {"retry": lambda: Retry(after=value), "snooze": lambda: Snooze(value)}[name]()


# Mappers.


class Trouble(Exception):
    pass


class DeepTrouble(Trouble):
    pass


class Abyss(DeepTrouble):
    pass


RAISED: dict[str, type[BaseException]] = {
    "trouble": Trouble,
    "deep": DeepTrouble,
    "abyss": Abyss,
    "key": KeyError,
    "os": OSError,
    "timeout": TimeoutError,
    "exit": SystemExit,
}


@task
def plain(name: str) -> None:
    raise RAISED[name]("plain")


@task
async def aplain(name: str) -> None:
    raise RAISED[name]("plain")


@task(exception_mapper={Trouble: "TASK_SAYS", OSError: "TASK_SAYS_OS"})
def mapped(name: str) -> None:
    raise RAISED[name]("mapped")


@task(retry_policy=RetryPolicy.fixed([60], auto_retry_for=["APP_DEEP"], jitter=False))
def retried_by_code(name: str) -> None:
    raise RAISED[name]("by its code")


# Progress and checkpoints.


@task(takes_context=True)
def steps(context, gate: str) -> str:
    context.progress(1, 3, "first")
    wait_for_gate(gate)
    context.progress(3, 3, "last")
    return "done"


@task(takes_context=True)
async def asteps(context, gate: str) -> str:
    context.progress(1, 3, "first")
    while not Path(gate).exists():
        await asyncio.sleep(0.02)
    context.progress(3, 3, "last")
    return "done"


@task(takes_context=True)
def progress_and_fail(context) -> None:
    context.progress(2, 5, "before the fall")
    raise ValueError("fell")


@task(takes_context=True, atomic=True)
def atomic_progress(context) -> None:
    context.progress(4, 5, "all of it")


@task(takes_context=True)
def report_often(context, calls: int) -> None:
    for done in range(calls):
        context.progress(done + 1, calls, "talking")


@task(takes_context=True)
def report(context, done, total=None, message: str = "") -> None:
    context.progress(float(done) if isinstance(done, str) else done, total, message)


@task(takes_context=True, max_attempts=3, backoff=0)
def resumes(context, steps_in_all: int) -> list[object]:
    """Do one step in each attempt and save it."""
    seen = context.state
    done = (seen or {"done": 0})["done"] + 1
    context.save({"done": done})
    if done < steps_in_all:
        raise RuntimeError("more to do")
    return [seen, context.state, context.attempt]


@task(takes_context=True, max_attempts=2, backoff=0)
async def aresumes(context) -> object:
    if context.attempt == 1:
        await context.asave([1, "two", None])
        raise RuntimeError("first")
    return context.state


@task(takes_context=True)
def resumes_after_snooze(context) -> object:
    if context.state is None:
        context.save("slept")
        raise Snooze(0)
    return context.state


@task(takes_context=True, retry_policy=RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False))
def resumes_after_a_crash(context, key: str) -> object:
    if context.state is None:
        context.save({"page": 7})
        write_entry(key)
        loop(FOREVER)
    return context.state


@task(takes_context=True, max_attempts=2, backoff=0)
def saves_and_rolls_back(context, key: str) -> object:
    if context.attempt == 1:
        context.save("kept")
        with transaction.atomic():
            write_entry(key)
            context.save("rolled back")
            raise RuntimeError("both or none")
    return [context.state, count(key)]


@task(takes_context=True, max_attempts=2, backoff=0, atomic=True)
def atomic_save(context, key: str) -> object:
    if context.attempt == 1:
        context.save("rolled back")
        raise RuntimeError("first")
    seen = context.state
    context.save("second")
    return seen


@task(takes_context=True)
def save_badly(context) -> None:
    context.save({"a set": {1, 2}})


@task(takes_context=True)
def save_much(context, size: int) -> None:
    context.save("x" * size)


@task(takes_context=True, max_attempts=2, backoff=0)
def saves_a_date(context) -> str:
    if context.attempt == 1:
        context.save({"since": datetime.date(2026, 11, 21)})
        raise RuntimeError("first")
    since = context.state["since"]
    return f"{since} {type(since).__name__}"


@task(takes_context=True, timeout=1)
async def leave_a_thread_with_the_row(context, gate: str) -> None:
    """A thread started by the body keeps the task's row locked after the body was cancelled."""

    def work():
        with transaction.atomic():
            context.save({"page": 1})
            Path(gate).with_suffix(".locked").touch()
            limit = time.monotonic() + 30
            while not Path(gate).exists() and time.monotonic() < limit:
                time.sleep(0.02)

    await sync_to_async(work, thread_sensitive=False)()
