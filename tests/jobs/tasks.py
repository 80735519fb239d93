"""Tasks that do something a test can see."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

from horsies_django import RetryPolicy, TaskError, TaskResult, current_task, task
from tests.jobs.models import Entry


@task
def noop() -> None:
    """Do nothing."""


@task
async def anoop() -> None:
    """Do nothing, as a coroutine."""


@task
def nap(seconds: float) -> None:
    time.sleep(seconds)


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task
def echo(*args, **kwargs):
    return {"args": list(args), "kwargs": kwargs}


@task
def identity(value):
    return value


@task
def write(key: str) -> None:
    Entry.objects.create(key=key, pid=os.getpid(), at=time.time())


@task
async def awrite(key: str) -> str:
    await Entry.objects.acreate(key=key, pid=os.getpid())
    return key


@task
async def await_others(key: str, others: int) -> int:
    """Return once that many bodies with this key have started."""
    await Entry.objects.acreate(key=key)
    for _ in range(1_200):
        if await Entry.objects.filter(key=key).acount() >= others:
            return others
        await asyncio.sleep(0.025)
    raise TimeoutError(f"only {await Entry.objects.filter(key=key).acount()} started")


@task
def hold(key: str, gate: str) -> str:
    """Write an entry, then wait until the file ``gate`` exists."""
    Entry.objects.create(key=key, pid=os.getpid(), at=time.time())
    limit = time.monotonic() + 60
    while not Path(gate).exists():
        if time.monotonic() > limit:
            raise TimeoutError(gate)
        time.sleep(0.02)
    return key


@task
async def ahold(key: str, gate: str) -> str:
    """Write an entry, then wait until the file ``gate`` exists."""
    await Entry.objects.acreate(key=key, pid=os.getpid())
    while not Path(gate).exists():
        await asyncio.sleep(0.02)
    return key


@task
def fail_until(fixed: str) -> str:
    """Fail until the file ``fixed`` exists."""
    if not Path(fixed).exists():
        raise FileNotFoundError(fixed)
    return "done"


@task
def spawn_thread(key: str) -> str:
    return threading.current_thread().name


@task
def sysexit():
    sys.exit(3)


@task
def interrupt():
    raise KeyboardInterrupt


@task
async def asysexit():
    sys.exit(3)


@task
async def ainterrupt():
    raise KeyboardInterrupt


@task
def unserialisable():
    return {1, 2}


@task
def hard_exit(key: str) -> None:
    Entry.objects.create(key=key)
    os._exit(9)


class Down(Exception):
    pass


class VeryDown(Down):
    pass


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no")


@task
def unprintable():
    raise Unprintable


class Untraceable(Exception):
    @property
    def __context__(self):
        raise RuntimeError("no")


@task
def untraceable():
    raise Untraceable("why")


@task
def fail(message: str = "no luck"):
    raise ValueError(message)


@task(exception_mapper={Down: "DOWN", LookupError: "LOST"})
def mapped(name: str):
    raise {"down": Down, "very": VeryDown, "key": KeyError, "other": OSError}[name]("mapped")


@task
def returns_error(code: str):
    return TaskResult(err=TaskError(error_code=code, message="as a value", data={"n": 1}))


@task
def platform() -> str:
    return sys.platform


@task
def returns_ok(value):
    return TaskResult(ok=value)


@task(retry_policy=RetryPolicy.fixed([1, 2], auto_retry_for=["DOWN"], jitter=False), exception_mapper={Down: "DOWN"})
def fixed(key: str):
    Entry.objects.create(key=key)
    raise Down("again")


@task(max_attempts=3, backoff=0)
def flaky(key: str, fails: int) -> int:
    Entry.objects.create(key=key)
    count = Entry.objects.filter(key=key).count()
    if count <= fails:
        raise RuntimeError(f"attempt {count}")
    return count


def give_up_on_value_error(exception, task_result):
    return None if isinstance(exception, ValueError) else 0.0


@task(max_attempts=5, backoff=give_up_on_value_error)
def choosy(key: str):
    Entry.objects.create(key=key)
    raise (RuntimeError if Entry.objects.filter(key=key).count() < 3 else ValueError)("choosy")


backoff_contexts = []


def give_up_on_value_error_of(context):
    backoff_contexts.append(context)
    return None if context.task_result.errors[-1].exception_class is ValueError else timedelta(0)


@task(max_attempts=5, backoff=give_up_on_value_error_of)
def choosy_by_context():
    raise (RuntimeError if current_task().attempt == 1 else ValueError)("choosy")


@task(max_attempts=5, backoff=give_up_on_value_error_of, takes_context=True)
async def achoosy_by_context(context):
    raise (RuntimeError if context.attempt == 1 else ValueError)("choosy")


@task(retry_policy=RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False))
def crash_once(key: str) -> int:
    Entry.objects.create(key=key)
    if Entry.objects.filter(key=key).count() == 1:
        os._exit(9)
    return Entry.objects.filter(key=key).count()


@task(takes_context=True)
def attempt(context) -> int:
    return context.attempt


@task(takes_context=True, max_attempts=2, backoff=0)
def attempt_ids(context):
    if context.attempt == 1:
        raise RuntimeError("first")
    return [context.attempt, context.task_result.id, len(context.task_result.errors)]


@task(takes_context=True)
async def acontext(context) -> str:
    return context.task_result.id


@task
def poison_connection():
    Entry.objects.raw("SELECT nonsense FROM nowhere")[0]


@task(queue_name="emails")
def on_emails():
    return "emails"


not_a_task = print


@task
def leave_quietly(key: str) -> None:
    Entry.objects.create(key=key)
    os._exit(0)


@task
def read_input() -> int:
    import subprocess

    return len(subprocess.run(["cat"], capture_output=True, check=True, timeout=20).stdout)


@task
def large(size: int) -> str:
    return "x" * size


def backoff_that_leaves(exception, task_result):
    sys.exit(1)


@task(max_attempts=2, backoff=backoff_that_leaves)
def bad_backoff():
    raise RuntimeError("first")


@task
async def leave_a_bomb() -> str:
    async def bomb():
        sys.exit(1)

    bomber = asyncio.create_task(bomb())
    await asyncio.sleep(0.05)
    return f"still here {bomber.done()}"


#: Where four bodies in the threads of one process meet.
four_bodies = threading.Barrier(4)


@task
def current_ids() -> list[str]:
    """Return the id of the current task, before and after three other bodies have asked for theirs."""
    before = current_task()
    four_bodies.wait(timeout=20)
    after = current_task()
    four_bodies.wait(timeout=20)  # no thread goes on to the next task meanwhile
    return [str(one.id) for one in (before, after) if one is not None]
