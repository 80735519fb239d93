"""Tasks that misbehave: they crash, hang, take memory, or violate their return hint."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path

from django.db import connection

from horsies_django import RetryPolicy, TaskError, TaskResult, TaskStatus, task
from horsies_django.db.now import Now
from horsies_django.models import Task
from tests.jobs.models import Entry


def wait_for(gate: str) -> None:
    limit = time.monotonic() + 60
    while not Path(gate).exists():
        if time.monotonic() > limit:
            raise TimeoutError(gate)
        time.sleep(0.02)


@task(retry_policy=RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False))
def hold_again(key: str, gate: str) -> int:
    """Write an entry and wait for the gate; retried if the worker dies."""
    Entry.objects.create(key=key, pid=os.getpid(), at=time.time())
    wait_for(gate)
    return os.getpid()


@task
def stop_the_process(key: str) -> str:
    """Write an entry, and stop the process until it gets SIGCONT."""
    Entry.objects.create(key=key, pid=os.getpid(), at=time.time())
    os.kill(os.getpid(), signal.SIGSTOP)
    return key


@task(retry_policy=RetryPolicy.fixed([1.5], auto_retry_for=["LATE"], jitter=False))
def fail_late(key: str, gate: str) -> TaskResult[str, TaskError]:
    """Fail the first time, once the gate is open; succeed the second time."""
    Entry.objects.create(key=key, pid=os.getpid(), at=time.time())
    wait_for(gate)
    if Entry.objects.filter(key=key).count() > 1:
        return TaskResult(ok=key)
    return TaskResult(err=TaskError(error_code="LATE", message="the first time"))


@task(takes_context=True)
def describe(context) -> dict:
    """Report the row and the process while this body runs."""
    row = Task.objects.get(pk=context.task_result.id)
    return {
        "status": row.status,
        "worker": row.claimed_by_worker_id,
        "started_at": row.started_at.isoformat(),
        "claimed_at": row.claimed_at.isoformat(),
        "pid": os.getpid(),
        "parent": os.getppid(),
        "at": time.time(),
    }


@task
def segfault(key: str) -> None:
    Entry.objects.create(key=key, pid=os.getpid())
    ctypes.string_at(0)


@task
def kill_itself(key: str) -> None:
    """Die as the kernel kills a process that takes too much memory."""
    Entry.objects.create(key=key, pid=os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


@task
def leave_hard(key: str) -> None:
    Entry.objects.create(key=key, pid=os.getpid())
    os._exit(9)


@task
def leave(key: str) -> None:
    Entry.objects.create(key=key, pid=os.getpid())
    sys.exit(3)


_kept: list[bytearray] = []


@task
def grow(key: str, megabytes: int) -> int:
    """Take memory and never release it."""
    _kept.append(bytearray(os.urandom(1024) * 1024 * megabytes))
    Entry.objects.create(key=key, pid=os.getpid())
    return os.getpid()


@task
def sockets_of_a_subprocess() -> str:
    """Return the sockets of a subprocess started by the body."""
    listing = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=True, timeout=20)
    return "\n".join(line for line in listing.stdout.splitlines() if "socket:" in line)


@task
def hinted_int(value) -> int:
    return value


@task
async def ahinted_int(value) -> int:
    return value


@task
def hinted_result_of_int(value) -> TaskResult[int, TaskError]:
    return TaskResult(ok=value)


@task
def hinted_list_of_str(value) -> list[str]:
    return value


@task
def unhinted(value):
    return value


@task
def fail_with_long_error(size: int) -> None:
    raise ValueError("x" * size + "the end")


@task
def return_long_error(size: int) -> TaskResult[None, TaskError]:
    return TaskResult(err=TaskError(error_code="LONG", message="x" * size, data="y" * size))


@task
def length(text: str) -> int:
    return len(text)


@task(retry_policy=RetryPolicy.fixed([100], auto_retry_for=["UNHANDLED_EXCEPTION"]))
def fails_with_jitter() -> None:
    raise ValueError("jitter")


@task(retry_policy=RetryPolicy.fixed([100], auto_retry_for=["UNHANDLED_EXCEPTION"], jitter=False))
def fails_without_jitter() -> None:
    raise ValueError("no jitter")


@task(
    retry_policy=RetryPolicy.exponential(
        base_seconds=20, max_retries=6, max_delay_seconds=100, auto_retry_for=["UNHANDLED_EXCEPTION"]
    )
)
def fails_with_growing_delays() -> None:
    raise ValueError("later and later")


def states_of(key) -> list[str]:
    """Return the names of the querysets in which a task is; they are those of asynq's states."""
    names = ("scheduled", "aggregating", "due", "active", "retrying", "archived", "completed")
    return [name for name in names if getattr(Task.objects, name)().filter(pk=key).exists()]


@task(
    takes_context=True,
    retry_policy=RetryPolicy.fixed([3600], auto_retry_for=["UNHANDLED_EXCEPTION"], jitter=False),
)
def record_states(context, fails: int) -> None:
    """Write an entry with the querysets in which the task is while its body runs; fail the first ``fails`` times."""
    row = Task.objects.get(pk=context.task_result.id)
    Entry.objects.create(key=f"{row.status} {' '.join(states_of(row.pk))}")
    if context.attempt <= fails:
        raise RuntimeError("not yet")


@task(takes_context=True, atomic=True)
def attempt_atomically(context) -> int:
    return context.attempt


# A coroutine that blocks the event loop, and others that therefore begin later.


def database_now() -> datetime:
    return Task.objects.values_list(Now(), flat=True)[0]


def note_when_running(others: int) -> None:
    """Write the database's time once others are RUNNING too, and return when it has moved on."""
    limit = time.monotonic() + 20
    while Task.objects.filter(status=TaskStatus.RUNNING).count() <= others and time.monotonic() < limit:
        time.sleep(0.01)
    now = database_now()
    Entry.objects.create(key=now.isoformat())
    while database_now() < now + timedelta(milliseconds=10):
        time.sleep(0.001)
    connection.close()


@task
async def block_loop(others: int) -> None:
    thread = threading.Thread(target=note_when_running, args=[others], daemon=True)
    thread.start()
    thread.join(60)  # no await, so nothing else runs on the loop


@task(max_attempts=2, backoff=0)
async def afail_twice() -> None:
    raise ValueError("no luck")


@task
async def akill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
