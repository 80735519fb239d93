"""Tasks for the tests of the API of Django's tasks framework."""

from __future__ import annotations

import sys
from decimal import Decimal
from uuid import UUID

import django
from django.db import connection

from horsies_django import RetryPolicy, TaskError, TaskResult, task
from horsies_django.backend import HorsiesBackend
from horsies_django.core.compat import FrameworkTask, default_task_backend
from tests.jobs.models import Entry

if django.VERSION >= (6, 0):
    from django.tasks import task as framework_task
else:
    from django_tasks import task as framework_task


class OwnBackend(HorsiesBackend):
    """A backend that a project defines itself."""


class Broken(Exception):
    """Raised by bodies; not a builtin class."""


class Outer:
    class Nested(Exception):
        """An exception whose qualified name has a dot."""

    def method(self):
        """Serve as a function that is not at module level."""


@task
def add(a, b=1):
    return a + b


@task
def subtract(a, b):
    return a - b


@task
def echo(*args, **kwargs):
    return {"args": list(args), "kwargs": kwargs}


@task
def write(key):
    Entry.objects.create(key=key)


@task
async def awrite(key):
    await Entry.objects.acreate(key=key)
    return key


RETURNED = {
    "None": None,
    "bytes": b"caf\xc3\xa9",
    "tuple": (1, (2, 3)),
    "range": range(3),
    "dict": {"a": (1,), 2: None, True: 1.5},
    "set": {1},
    "uuid": UUID(int=1),
    "decimal": Decimal(1),
    "object": object(),
    "bad bytes": b"\xff",
    "nan": float("nan"),
    "nul": "a\0b",
}


@task
def give(name):
    return RETURNED[name]


@task
def fail(message="no luck"):
    raise Broken(message)


@task
async def afail(message="no luck"):
    raise Broken(message)


@task
def fail_nested():
    raise Outer.Nested("deep")


@task
def return_error():
    return TaskResult(err=TaskError(error_code="SMTP_DOWN", message="the server is away"))


@task
def exit_process():
    sys.exit(1)


@task
def interrupt():
    raise KeyboardInterrupt


@task
def run_bad_query():
    with connection.cursor() as cursor:
        cursor.execute("SELECT nonsense FROM nowhere")


@task(max_attempts=3, backoff=0)
def flaky(key, fails):
    Entry.objects.create(key=key)
    number = Entry.objects.filter(key=key).count()
    if number <= fails:
        raise Broken(f"attempt {number}")
    return number


@task(retry_policy=RetryPolicy.fixed([3600], auto_retry_for=["*"], jitter=False))
def fail_and_wait():
    raise Broken("again in an hour")


def _describe(context):
    result = context.task_result
    return {
        "attempt": context.attempt,
        "attempts": result.attempts,
        "id": result.id,
        "status": result.status.value,
        "is_finished": result.is_finished,
        "workers": len(result.worker_ids),
        "started": result.started_at is not None,
        "attempted": result.last_attempted_at is not None,
        "finished": result.finished_at is not None,
        "errors": len(result.errors),
        "args": result.args,
        "kwargs": result.kwargs,
        "path": result.task.module_path,
    }


@task(takes_context=True)
def show_context(context, *args, **kwargs):
    return _describe(context)


@task(takes_context=True)
async def ashow_context(context, *args, **kwargs):
    return _describe(context)


@task(takes_context=True, max_attempts=3, backoff=0)
def show_last_context(context):
    if context.attempt < 3:
        raise Broken(f"attempt {context.attempt}")
    return _describe(context)


@task(takes_context=True)
def get_own_result(context):
    """Return what ``get_result()`` shows of this task while its body runs."""
    result = default_task_backend.get_result(context.task_result.id)
    try:
        value = result.return_value
    except ValueError as error:
        value = str(error)
    return {"status": result.status.value, "value": value, "same": result == context.task_result}


@task(takes_context=True)
def change_arguments(context, items):
    """Change the arguments in place."""
    items.append("more")
    context.task_result.args.append("more")
    return items


@task(priority=7, queue_name="emails", takes_context=True)
def decorated(context):
    """Have every option of the framework."""


@task(max_attempts=4, timeout=20, retention="7d", metadata={"team": "mail"}, exception_mapper={Broken: "BROKEN"})
def with_horsies_options():
    """Have options that only horsies knows."""


@framework_task
def made_by_django(a):
    return a * 2


@framework_task(priority=3, queue_name="emails")
def made_by_django_with_options():
    """Have the options that Django's decorator takes in every version."""


def _plain(a):
    return a * 3


# Not a HorsiesTask: as if another backend had made it before the settings changed.
_plain.__qualname__ = "plain"
plain = FrameworkTask(func=_plain, priority=0, backend="default", queue_name="default", run_after=None)


def not_a_task(*args, **kwargs):
    Entry.objects.create(key="called")


class NotATask:
    """Looks like a task but is not one."""

    takes_context = False

    def func(self, *args, **kwargs):
        Entry.objects.create(key="called")

    __call__ = call = enqueue = func


looks_like_a_task = NotATask()


def not_taking_context(a):
    """Take no context: invalid with ``takes_context``."""


def taking_nothing():
    """Take no arguments: invalid with ``takes_context``."""


def yields():
    """Yield: invalid as a task."""
    yield 1


async def ayields():
    """Yield: invalid as a task."""
    yield 1


def takes_a(context, a):
    """Take a first argument named ``context``: valid with and without ``takes_context``."""
