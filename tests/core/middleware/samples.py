"""Middleware of every kind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

from asgiref.sync import iscoroutinefunction
from django.db import connection
from django.utils.decorators import async_only_middleware, sync_and_async_middleware

from horsies_django import Snooze
from horsies_django.middleware import ContextMiddleware, TaskCall, TaskSend

#: Entries, bodies and exits in their order, and the threads in which they ran.
seen: list[str] = []
threads: list[int] = []
calls: list[TaskCall] = []
sends: list[TaskSend] = []
made: list[str] = []

#: Middleware that sends headers.
WITH_HEADERS = [
    "horsies_django.middleware.LocaleMiddleware",
    "horsies_django.middleware.TimezoneMiddleware",
    "tests.core.middleware.samples.TenantMiddleware",
]

tenant: ContextVar[str] = ContextVar("tenant", default="public")


@contextmanager
def recording(name: str) -> Iterator[None]:
    """Record the entry and the exit, with the type of an exception."""
    seen.append(f"{name} in")
    threads.append(threading.get_ident())
    try:
        yield
    except BaseException as error:
        seen.append(f"{name} {type(error).__name__}")
        raise
    else:
        seen.append(f"{name} out")


def outer(run):
    """Wrap functions."""
    made.append("outer")

    def wrapper(call):
        calls.append(call)
        with recording("outer"):
            return run(call)

    return wrapper


@sync_and_async_middleware
def both(run):
    """Wrap functions and coroutines."""
    made.append("both")
    if not iscoroutinefunction(run):

        def wrapper(call):
            with recording("both"):
                return run(call)

        return wrapper

    async def awrapper(call):
        with recording("both"):
            return await run(call)

    return awrapper


@async_only_middleware
def only_async(run):
    """Wrap coroutines."""

    async def wrapper(call):
        with recording("only_async"):
            return await run(call)

    return wrapper


class TenantMiddleware(ContextMiddleware):
    """The tenant for whom a task was sent."""

    @contextmanager
    def within(self, call: TaskCall) -> Iterator[None]:
        """Make the tenant of the metadata active."""
        token = tenant.set(call.metadata.get("tenant", "public"))
        try:
            yield
        finally:
            tenant.reset(token)

    @staticmethod
    def headers() -> dict[str, str]:
        """Send the active tenant."""
        return {"tenant": tenant.get()}


def failing_before(run):
    """Raise before the body runs."""

    def wrapper(call):
        raise LookupError("before the body")

    return wrapper


def failing_after(run):
    """Raise after the body has run."""

    def wrapper(call):
        run(call)
        raise LookupError("after the body")

    return wrapper


def putting_off(run):
    """Snooze the first attempt."""

    def wrapper(call):
        if not seen:
            seen.append("put off")
            raise Snooze(0)
        return run(call)

    return wrapper


def instead(run):
    """Return a result without running the body."""
    return lambda call: "instead"


def forgiving(run):
    """Turn an exception into a result."""

    def wrapper(call):
        try:
            return run(call)
        except ValueError as error:
            return f"forgiven: {error}"

    return wrapper


def looking_for_a_transaction(run):
    """Record whether a transaction is open."""

    def wrapper(call):
        seen.append(f"in a transaction: {connection.in_atomic_block}")
        return run(call)

    return wrapper


def broken_factory(run):
    """Return no callable."""


class Neither:
    """Middleware that supports neither functions nor coroutines."""

    sync_capable = False


class Mute:
    """Middleware whose ``headers`` cannot be called."""

    headers = "language"


class Odd:
    """Middleware whose headers are a text."""

    def __init__(self, run):
        """Take the body and ignore it."""

    @staticmethod
    def headers():
        """Return a text."""
        return "language"


class Unstorable(Odd):
    """Middleware whose headers JSON cannot store."""

    @staticmethod
    def headers():
        """Return a set."""
        return {"some": {1}}


class Huge(Odd):
    """Middleware whose headers are too large to be sent."""

    @staticmethod
    def headers():
        """Return megabytes."""
        return {"much": "x" * 20_000_000}


NOTHING = 5


def reserving_a_text(run):
    """Have reserved headers that are not a collection of names."""
    return run


reserving_a_text.reserved_headers = "tenant"


class Sending(ContextMiddleware):
    """Records sends, and sends whether one is open."""

    def within(self, call):
        """Do nothing."""
        return nullcontext()

    @staticmethod
    def headers():
        """Return the names of the open sends."""
        return {"inside": [entry for entry in seen if entry.startswith("send")]}

    @staticmethod
    @contextmanager
    def around_send(send):
        """Record the entry and the exit."""
        sends.append(send)
        with recording("send"):
            yield


class SendingToo(Sending):
    """The same, to be the inner one."""


def asking(run):
    """Record what the call says of an exception."""

    def wrapper(call):
        try:
            return run(call)
        except BaseException as error:
            seen.append(call.outcome_of(error))
            raise

    return wrapper


class NotCallable:
    """Middleware whose ``around_send`` cannot be called."""

    around_send = "send"

    def __init__(self, run):
        """Take the body and ignore it."""
