"""Bodies for the worker in a web process."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

from asgiref.sync import sync_to_async

from horsies_django import RetryPolicy, TaskStatus, task
from horsies_django.models import Task
from tests.jobs.entries import wait_for_gate, write_entry
from tests.jobs.models import Entry


@task(retry_policy=RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False))
def hold(key: str, gate: str) -> str:
    """Write an entry, then wait until the file ``gate`` exists."""
    write_entry(key)
    wait_for_gate(gate)
    return key


class BrokenWorker(Exception):
    """What the worker itself raises."""


@task(retry_policy=RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False))
def break_worker() -> str:
    """Have the worker fail that runs this body for the first time, and go on until the process ends."""
    if Entry.objects.filter(key="broken").exists():
        return "again"
    write_entry("broken")
    (producer,) = (thread for thread in threading.enumerate() if thread.name == "horsies-producer")
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(producer.ident or 0), ctypes.py_object(BrokenWorker))
    threading.Event().wait()
    return "never"


@task
def count_running() -> int:
    """Return how many tasks have the state RUNNING."""
    return Task.objects.filter(status=TaskStatus.RUNNING).count()


@task(timeout=0.2)
def read_pipe(path: str) -> str:
    """Wait in C code for a writer, where no exception can come."""
    return Path(path).read_text()


@task
async def read_pipe_in_thread(path: str, *, is_shared: bool) -> str:
    """Wait in C code in a thread of the coroutine, or in one that coroutines share."""
    return await sync_to_async(Path(path).read_text, thread_sensitive=not is_shared)()


@task
def read_pipe_for_long(path: str) -> str:
    """Wait in C code for a writer, without a time limit."""
    return Path(path).read_text()
