"""Bodies that hold the interpreter, hold a lock, or leave processes behind."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import multiprocessing
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

from horsies_django import RetryPolicy, task
from horsies_django.exceptions import TaskInterrupt
from tests.jobs.entries import FOREVER, wait_for_gate, write_entry
from tests.jobs.models import Entry

RETRY_CRASHES = RetryPolicy.fixed([1] * 5, auto_retry_for=["WORKER_CRASHED"], jitter=False)


def hold_interpreter(seconds: int) -> None:
    """Wait in C code without releasing the interpreter's lock, so that no other thread of the process runs."""
    ctypes.PyDLL(None).sleep(seconds)


@task(timeout=2, max_attempts=3, backoff=0)
def hog(key: str) -> None:
    write_entry(key)
    hold_interpreter(FOREVER)


@task(timeout=2)
def hog_once(key: str) -> None:
    write_entry(key)
    hold_interpreter(FOREVER)


@task(retry_policy=RETRY_CRASHES)
def add_again(number: int) -> int:
    return number + 1


@task(timeout=2, max_attempts=3, backoff=0)
def backtrack(key: str) -> None:
    """Match a pattern that never ends, in C code that holds the interpreter's lock."""
    write_entry(key)
    re.match(r"(a+)+$", "a" * 60 + "b")


@task
def hog_when_open(key: str, gate: str, seconds: int = FOREVER) -> str:
    """Hold the interpreter's lock as soon as the gate is open."""
    write_entry(key)
    wait_for_gate(gate)
    hold_interpreter(seconds)
    return key


@task
def hog_at_once(marker: str, seconds: int) -> None:
    """Hold the interpreter's lock from the start."""
    Path(marker).touch()
    hold_interpreter(seconds)


@task
async def ahog_at_once(marker: str, seconds: int) -> None:
    Path(marker).touch()
    hold_interpreter(seconds)


@task
async def ablock(marker: str, gate: str) -> None:
    """Block the event loop until the gate is open."""
    Path(marker).touch()
    wait_for_gate(gate)


@task(retry_policy=RETRY_CRASHES)
def hold_again(key: str, gate: str, seconds: float = FOREVER) -> str:
    write_entry(key)
    wait_for_gate(gate, seconds)
    return key


@task
def hold(key: str, gate: str, seconds: float = FOREVER) -> str:
    write_entry(key)
    wait_for_gate(gate, seconds)
    return key


@task(queue_name="late", max_attempts=3)
def hold_by_process(key: str, folder: str) -> int:
    """Wait for the gate of this process."""
    write_entry(key)
    wait_for_gate(Path(folder, str(os.getpid())))
    return os.getpid()


@task
def hold_by_run(folder: str) -> int:
    """Wait for the gate of this run, and return the run's number. Nothing of it is in the database."""
    number = len(list(Path(folder).glob("run-*"))) + 1
    Path(folder, f"run-{number}").touch()
    wait_for_gate(Path(folder, f"gate-{number}"))
    return number


@task(queue_name="late", atomic=True, max_attempts=3)
def write_atomically(key: str) -> None:
    write_entry(key)


@task
def write(key: str) -> int:
    write_entry(key)
    return os.getpid()


# Bodies with a limit on how many run at once.


@task(queue_name="narrow", retry_policy=RETRY_CRASHES)
def take_a_slot(folder: str, slots: int, key: str) -> str:
    """Hold one of ``slots`` locks until the gate is open; write an entry if other bodies hold them all."""
    for number in range(slots):
        with Path(folder, f"slot-{number}").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            write_entry(key)
            # Only the end of the process ends this body.
            gate_is_open = threading.Event()
            while not gate_is_open.is_set():
                try:
                    wait_for_gate(Path(folder, "gate"))
                    gate_is_open.set()
                except TaskInterrupt:
                    pass
            return key
    write_entry("too many")
    return "too many"


@task(retry_policy=RETRY_CRASHES)
def clean_up(key: str) -> None:
    write_entry(f"{key} began")
    try:
        wait_for_gate("nowhere")
    finally:
        write_entry(f"{key} ended")


@task(retry_policy=RETRY_CRASHES)
async def aclean_up(key: str) -> None:
    await Entry.objects.acreate(key=f"{key} began", pid=os.getpid())
    try:
        await asyncio.sleep(FOREVER)
    finally:
        await Entry.objects.acreate(key=f"{key} ended", pid=os.getpid())


@task(retry_policy=RETRY_CRASHES)
def be_stuck(key: str, seconds: float) -> None:
    write_entry(key)
    time.sleep(seconds)


# Bodies that start processes.


def _sleep(running=None) -> None:
    if running is not None:
        running.set()
    time.sleep(FOREVER)


@task
def terminate_a_child(*, at_once: bool = True) -> int:
    """Start a process, terminate it, and wait for it; return its exit status."""
    context = multiprocessing.get_context("fork")
    running = context.Event()
    child = context.Process(target=_sleep, args=(running,))
    child.start()
    assert at_once or running.wait(20)
    child.terminate()
    child.join(20)
    status = child.exitcode
    if status is None:
        child.kill()
        raise TimeoutError("the child ignored SIGTERM")
    return status


@task
def handlers_in_a_child() -> list[str]:
    """Return what SIGTERM and SIGINT do in a process that a body has forked."""
    reading, writing = os.pipe()
    if not os.fork():
        found = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        os.write(writing, ",".join(map(_name, found)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return pipe.read().split(",")


def _name(handler) -> str:
    return getattr(handler, "__name__", None) or signal.Handlers(handler).name


@task
def leave_an_orphan() -> int:
    """Leave a process behind that has ended, and whose parent has ended; return its pid."""
    return int(subprocess.check_output(["sh", "-c", "true & echo $!"], start_new_session=True))


@task
def is_reaped(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@task
def leave_processes_behind(gate: str) -> dict[str, int]:
    """Start processes of each start method and programs, and leave them running; wait for the gate."""
    reading, writing = os.pipe()
    forked = os.fork()
    if not forked:
        grandchild = os.fork()
        if grandchild:
            os.write(writing, str(grandchild).encode())
        time.sleep(FOREVER)
        os._exit(0)
    grandchild = int(os.read(reading, 16))
    child = multiprocessing.get_context("fork").Process(target=_sleep)
    starter = threading.Thread(target=child.start)  # a thread that ends must not take the process with it
    starter.start()
    starter.join()
    methods = {"spawned": "spawn", "served": "forkserver"}
    others = {
        name: multiprocessing.get_context(method).Process(target=time.sleep, args=(FOREVER,))
        for name, method in methods.items()
    }
    for other in others.values():
        other.start()
    program = subprocess.Popen(["sleep", str(FOREVER)])
    stubborn = subprocess.Popen(["sh", "-c", f"trap '' TERM; sleep {FOREVER}"])
    detached = subprocess.Popen(["sleep", str(FOREVER)], start_new_session=True)
    pids = {"forked": forked, "grandchild": grandchild, "child": child.pid}
    pids |= {name: other.pid for name, other in others.items()}
    pids |= {"program": program.pid, "stubborn": stubborn.pid, "detached": detached.pid, "runner": os.getpid()}
    Entry.objects.bulk_create(Entry(key=name, pid=pid) for name, pid in pids.items())
    wait_for_gate(gate)
    return {}


@task
def exit_with(key: str, status: int) -> None:
    write_entry(key)
    os._exit(status)
