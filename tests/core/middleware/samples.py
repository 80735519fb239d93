"""Middleware of every kind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from asgiref.sync import iscoroutinefunction
from django.db import connection
from django.utils.decorators import async_only_middleware, sync_and_async_middleware

from horsies_django import Snooze
from horsies_django.middleware import ContextMiddleware, TaskCall

#: What came by, in order; and the threads it came by in.
seen: list[str] = []
threads: list[int] = []
calls: list[TaskCall] = []
made: list[str] = []

#: Those with headers.
TRAVELLING = [
    "horsies_django.middleware.LocaleMiddleware",
    "horsies_django.middleware.TimezoneMiddleware",
    "tests.core.middleware.samples.TenantMiddleware",
]

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@contextmanager
def noting(name: str) -> Iterator[None]:
    """Note who comes by, and who goes, with what."""
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
    """Go round functions."""
    made.append("outer")

    def around(call):
        calls.append(call)
        with noting("outer"):
            return run(call)

    return around


@sync_and_async_middleware
def both(run):
    """Go round functions and coroutines."""
    made.append("both")
    if not iscoroutinefunction(run):

        def around(call):
            with noting("both"):
                return run(call)

        return around

    async def aaround(call):
        with noting("both"):
            return await run(call)

    return aaround


@async_only_middleware
def only_async(run):
    """Go round coroutines."""

    async def around(call):
        with noting("only_async"):
            return await run(call)

    return around


class TenantMiddleware(ContextMiddleware):
    """Whom a task was sent for."""

    @contextmanager
    def within(self, call: TaskCall) -> Iterator[None]:
        """Be somebody."""
        token = tenant.set(call.metadata.get("tenant", "nobody"))
        try:
            yield
        finally:
            tenant.reset(token)

    @staticmethod
    def headers() -> dict[str, str]:
        """Travel with who it is."""
        return {"tenant": tenant.get()}


def failing_before(run):
    """Fail, and let nobody in."""

    def around(call):
        raise LookupError("before the body")

    return around


def failing_after(run):
    """Let the body run, and fail."""

    def around(call):
        run(call)
        raise LookupError("after the body")

    return around


def putting_off(run):
    """Put the first attempt off."""

    def around(call):
        if not seen:
            seen.append("put off")
            raise Snooze(0)
        return run(call)

    return around


def instead(run):
    """Answer for the body."""
    return lambda call: "instead"


def forgiving(run):
    """Make an answer of an error."""

    def around(call):
        try:
            return run(call)
        except ValueError as error:
            return f"forgiven: {error}"

    return around


def looking_for_a_transaction(run):
    """Note whether a transaction is open."""

    def around(call):
        seen.append(f"in a transaction: {connection.in_atomic_block}")
        return run(call)

    return around


def broken_factory(run):
    """Make nothing."""


class Neither:
    """Goes round nothing."""

    sync_capable = False


class Mute:
    """Has headers that are none."""

    headers = "language"


class Odd:
    """Gives headers that are none."""

    def __init__(self, run):
        """Take what it does not go round."""

    @staticmethod
    def headers():
        """Give a text."""
        return "language"


class Unstorable(Odd):
    """Gives headers that JSON has no word for."""

    @staticmethod
    def headers():
        """Give a set."""
        return {"some": {1}}


class Huge(Odd):
    """Gives more than may be sent."""

    @staticmethod
    def headers():
        """Give megabytes."""
        return {"much": "x" * 20_000_000}


NOTHING = 5


def reserving_a_text(run):
    """Reserve what is no collection of names."""
    return run


reserving_a_text.reserved_headers = "tenant"
