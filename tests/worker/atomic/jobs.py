"""Atomic tasks that die or fail at a given step."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.db import connection, connections, transaction
from django.db.models import F

from horsies_django import (
    RetryPolicy,
    Snooze,
    TaskError,
    TaskHandle,
    TaskResult,
    WorkflowHandle,
    WorkflowMeta,
    task,
)
from horsies_django.models import Task
from tests.jobs.models import Entry

RETRY = RetryPolicy.fixed([1, 1, 1], auto_retry_for=["WORKER_CRASHED"], jitter=False)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # never finishes


def is_first(marker: str) -> bool:
    """Create the marker; return whether it did not exist."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class DieAfter:
    """Kills the process after a statement with this beginning."""

    def __init__(self, beginning: str) -> None:
        self.beginning = beginning

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if sql.replace('"', "").startswith(self.beginning):
            die()
        return result


#: The steps at which the process dies, in the order in which they come.
STEPS = ("before", "between", "at the end", "marked", "written", "committed")


@task(atomic=True, retry_policy=RETRY)
def effects(key: str, step: str, marker: str) -> str:
    """Leave two entries; the first time, die at ``step``."""
    dies = step if is_first(marker) else "never"
    if dies == "before":
        die()
    Entry.objects.create(key=key)
    if dies == "between":
        die()
    Entry.objects.create(key=f"{key} too")
    if dies == "at the end":
        die()
    if dies == "marked":
        connection.execute_wrappers.append(DieAfter("UPDATE horsies_tasks SET status"))
    if dies == "written":
        connection.execute_wrappers.append(DieAfter("INSERT"))
    if dies == "committed":
        transaction.on_commit(die)
    return key


class Refused(Exception):
    pass


@task(atomic=True)
def end_as_requested(key: str, how: str):
    Entry.objects.create(key=key)
    if how == "raises":
        raise Refused
    if how == "returns an error":
        return TaskResult(err=TaskError(error_code="NO"))
    if how == "snoozes":
        raise Snooze(3_600)
    if how == "returns an unserializable value":
        return {1, 2}
    return None


@task(atomic=True)
def held(key: str, gate: str) -> str:
    """Write an entry, create the file ``.begun``, and wait for the gate."""
    Entry.objects.create(key=key)
    Path(gate).with_suffix(".begun").touch()
    limit = time.monotonic() + 60
    while not Path(gate).exists() and time.monotonic() < limit:
        time.sleep(0.02)
    return key


@task(atomic=True, timeout=0.5)
def endless(key: str):
    Entry.objects.create(key=key)
    while True:
        time.sleep(0.01)


@task(atomic=True)
def hooks(key: str, path: str) -> str:
    """Register two callbacks that run after the commit; the second raises."""

    def note():
        with Path(path).open("a") as file:
            file.write(f"{Entry.objects.filter(key=key).count()}\n")

    def fail():
        raise Refused("in a callback")

    Entry.objects.create(key=key)
    transaction.on_commit(note)
    transaction.on_commit(fail)
    return key


@task(atomic=True)
def lose_the_connection(key: str):
    """Write an entry; then have the server terminate the connection."""
    Entry.objects.create(key=key)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@task(atomic=True, max_attempts=2, backoff=0)
def lose_the_connection_unnoticed(key: str):
    """Write an entry; then end the connection, as a pooler or a firewall does."""
    Entry.objects.create(key=key)
    pid = connection.connection.info.backend_pid

    def terminate():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        connection.close()

    thread = threading.Thread(target=terminate)
    thread.start()
    thread.join()


@task(atomic=True)
def close_the_connection(key: str):
    Entry.objects.create(key=key)
    connections.close_all()


@task(atomic=True)
def end_the_transaction(key: str, statement: str):
    """Write an entry, end the transaction, and write another one."""
    Entry.objects.create(key=key)
    with suppress(Exception), connection.cursor() as cursor:
        cursor.execute(statement)
    Entry.objects.create(key=f"{key} too")


@task(atomic=True)
def roll_back_to_a_savepoint(key: str):
    Entry.objects.create(key=key)
    with suppress(Refused), transaction.atomic():
        Entry.objects.create(key=f"{key} too")
        raise Refused


@task(atomic=True)
def violate_a_deferred_constraint(key: str):
    """Write an entry, and a row that violates a constraint checked at commit."""
    Entry.objects.create(key=key)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO pairs (id, other) VALUES (1, 999)")
    return key


@task(atomic=True, takes_context=True)
def report_and_save(context, key: str) -> int:
    Entry.objects.create(key=key)
    context.progress(3, 3, "all")
    context.save({"row": 3})
    return context.attempt


@task(atomic=True, takes_context=True)
def lose_the_claim(context, key: str) -> str:
    """Write an entry; then take the claim away, unnoticed by the body."""
    Entry.objects.create(key=key)
    rows = Task.objects.filter(pk=context.task_result.id)

    def take():
        rows.update(claim=F("claim") + 1)
        connection.close()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return key


@task(atomic=True, takes_context=True)
def end_itself(context, key: str, how: str, catches: bool = False) -> str:
    """Write an entry; then cancel or delete the task itself, in its own transaction."""
    Entry.objects.create(key=key)
    own = Task.objects.filter(pk=context.task_result.id)
    try:
        match how:
            case "by its handle":
                TaskHandle(context.task_result.id).cancel(include_running=True)
            case "by a filter":
                Task.objects.filter(task_name=own.get().task_name).cancel(include_running=True)
            case "by its workflow":
                WorkflowHandle(own.get().workflow_id).cancel(include_running=True)
            case "by deleting its row":
                own.delete()
    except transaction.TransactionManagementError:
        if not catches:
            raise
    return key


@task(atomic=True)
def change_own_workflow(key: str, actions: list[str], workflow_meta: WorkflowMeta) -> list[bool]:
    Entry.objects.create(key=key)
    return [getattr(WorkflowHandle(workflow_meta.workflow_id), action)() for action in actions]


@task(atomic=True, max_attempts=3, backoff=0)
def succeed_at_third_attempt(key: str, path: str) -> int:
    with Path(path).open("a") as file:
        file.write("x")
    Entry.objects.create(key=key)
    with transaction.atomic():
        Entry.objects.create(key=f"{key} nested")
    if (tries := len(Path(path).read_text())) < 3:
        raise Refused
    return tries


@task(atomic=True, takes_context=True)
def cancel_itself_after_the_commit(context, key: str) -> None:
    def cancel():
        is_cancelled = TaskHandle(context.task_result.id).cancel(include_running=True)
        Entry.objects.create(key=f"{key} {is_cancelled}")

    transaction.on_commit(cancel)
