"""Middleware: wraps the body of each task, and adds headers to the tasks that are sent.

OPTIONS["middleware"] lists it, outermost first. As in Django, a middleware is a factory that gets the next callable:

>>> def timed(run):
...     def around(call):
...         began = time.monotonic()
...         try:
...             return run(call)
...         finally:
...             logger.info("%s took %.3f s", call.task_name, time.monotonic() - began)
...     return around

Its return values and exceptions count as those of the body: retry policies, time limits and cancels treat both alike.
``sync_capable`` and ``async_capable`` (Django's decorators of ``django.utils.decorators``) say which kind of body
it can wrap without a change of threads. If it has a function ``headers()``, each send calls it. If it has a function
``around_send()``, each send happens inside the context manager that it returns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Final
from uuid import UUID

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone, translation
from django.utils.module_loading import import_string

from .compat import FrameworkTask
from .current_task import is_dry_run
from .options import Options
from .results import TaskError


class AttemptOutcome(StrEnum):
    """How an attempt ends."""

    COMPLETED = "completed"
    RETRYING = "retrying"
    FAILED = "failed"
    DISCARDED = "discarded"
    SNOOZED = "snoozed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskCall:
    """One attempt at a task, as middleware sees it. Making it needs no query; changing it does not change the row.

    ``attempt`` counts from 1, and ``max_attempts`` is the number that the retry policy allows; ``metadata`` has the
    headers of the task; ``workflow_id`` is the id of the outermost workflow of a node, None for other tasks.
    """

    id: UUID
    task: FrameworkTask[..., Any]
    task_name: str
    queue_name: str
    priority: int
    attempt: int
    max_attempts: int
    enqueued_at: datetime
    #: Not in the repr, which middleware may log: these three may be sensitive.
    args: tuple[Any, ...] = field(repr=False)
    kwargs: Mapping[str, Any] = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False)
    workflow_id: UUID | None
    #: Calls the function itself; for a coroutine it returns the awaitable.
    body: Callable[[], Any] = field(repr=False)
    #: Returns the outcome and the error code of the attempt if it ends with this exception or :class:`TaskError`.
    #: RETRYING says that the retry policy has another attempt; a ``backoff`` function may still decide against it.
    outcome_of: Callable[[BaseException | TaskError[Any]], tuple[AttemptOutcome, str]] = field(repr=False)


@dataclass(slots=True, kw_only=True, eq=False)
class TaskSend:
    """One send, as middleware sees it: of a call, of several calls of a task (``is_many``), or the start of a workflow.

    ``task_name`` is None for a workflow, and ``workflow_name`` for anything else. A workflow's ``queue_name`` is that
    of its options, or None. The last three are set when the rows are inserted: ``id`` is the task's or the workflow's,
    and None for several calls; ``count`` is the number of calls, or of the workflow's nodes; ``is_new`` is False if
    the send has found an existing task or workflow instead.
    """

    task_name: str | None = None
    workflow_name: str | None = None
    queue_name: str | None = None
    is_many: bool = False
    id: UUID | None = None
    count: int | None = None
    is_new: bool = True


#: The callable that a middleware wraps, and the one that it returns.
Run = Callable[[TaskCall], Any]


class ContextMiddleware:
    """Runs each body, function or coroutine, inside a context manager.

    Override :meth:`within`, :meth:`headers` to add headers, and :meth:`around_send` to wrap sends. The context manager
    of a body must not block: for a coroutine it is entered on the event loop.
    """

    sync_capable: ClassVar[bool] = True
    async_capable: ClassVar[bool] = True
    #: Keys of metadata that only this middleware may send, even if its ``headers()`` has no value for them.
    reserved_headers: ClassVar[Collection[str]] = ()

    def __init__(self, run: Run) -> None:
        self._run = run
        if iscoroutinefunction(run):
            markcoroutinefunction(self)

    def __call__(self, call: TaskCall) -> Any:
        """Run the wrapped callable."""
        if iscoroutinefunction(self):
            return self._around(call)
        with self.within(call):
            return self._run(call)

    async def _around(self, call: TaskCall) -> Any:
        with self.within(call):
            return await self._run(call)

    def within(self, call: TaskCall) -> AbstractContextManager[Any]:
        """Return the context manager for one call."""
        raise NotImplementedError(f"{type(self).__qualname__} has to override within().")

    @staticmethod
    def headers() -> Mapping[str, Any]:
        """Return the headers for a task that is sent now."""
        return {}

    @staticmethod
    def around_send(send: TaskSend) -> AbstractContextManager[Any]:
        """Return the context manager for one send: it is entered before any ``headers()``, and left after the INSERT.

        It must let exceptions pass.
        """
        return nullcontext()


class LocaleMiddleware(ContextMiddleware):
    """Activates the sender's language in the body. The header is ``language``."""

    reserved_headers = ("language",)

    def within(self, call: TaskCall) -> AbstractContextManager[Any]:
        """Activate the language in the headers, if any."""
        language = call.metadata.get("language")
        return translation.override(language) if isinstance(language, str) else nullcontext()

    @staticmethod
    def headers() -> Mapping[str, Any]:
        """Return the active language; nothing while translations are off."""
        language = translation.get_language()
        return {"language": language} if language else {}


class TimezoneMiddleware(ContextMiddleware):
    """Activates the sender's current time zone in the body. The header is ``timezone``, a name.

    A time zone without a name, such as a fixed offset, is not sent.
    """

    reserved_headers = ("timezone",)

    def within(self, call: TaskCall) -> AbstractContextManager[Any]:
        """Activate the time zone in the headers, if any."""
        zone = call.metadata.get("timezone")
        return timezone.override(zone) if isinstance(zone, str) else nullcontext()

    @staticmethod
    def headers() -> Mapping[str, Any]:
        """Return the name of the current time zone."""
        name = getattr(timezone.get_current_timezone(), "key", None)
        return {"timezone": name} if name else {}


#: A middleware factory: takes the callable to wrap and returns the wrapper.
Factory = Callable[[Any], Any]

ALLOWED: Final = "dotted paths of middleware"


@functools.cache
def load_factory(path: str) -> Factory:
    """Return the factory at a dotted path. Raises ImproperlyConfigured naming the problem."""
    try:
        imported = import_string(path)
    except Exception as error:
        raise ImproperlyConfigured(f"middleware {path!r} can't be imported: {error}") from error
    if problem := next(_problems_of(imported), None):
        raise ImproperlyConfigured(f"middleware {path!r} {problem}")
    factory: Factory = imported
    return factory


def supports_mode(factory: Factory, *, is_async: bool) -> bool:
    """Whether it wraps coroutines (``is_async``) or functions directly; by default functions only."""
    return bool(getattr(factory, "async_capable", False) if is_async else getattr(factory, "sync_capable", True))


def _problems_of(factory: Any) -> Iterator[str]:
    if not callable(factory):
        yield f"is {type(factory).__name__}; allowed: a function or a class that takes the callable to wrap."
    elif not any(supports_mode(factory, is_async=is_async) for is_async in (False, True)):
        yield "is neither sync_capable nor async_capable; allowed: one of them, or both."
    elif not callable(getattr(factory, "headers", dict)):
        yield "has headers that can't be called; allowed: a function, a static or a class method, that takes nothing."
    elif not callable(getattr(factory, "around_send", dict)):
        yield "has an around_send that can't be called; allowed: a function, a static or a class method."
    elif isinstance(names := getattr(factory, "reserved_headers", ()), str | bytes) or not isinstance(
        names, Collection
    ):
        yield f"has reserved_headers {names!r}; allowed: a collection of names."


Wrapper = Callable[[TaskSend], AbstractContextManager[Any]]


def around_send(options: Options, send: TaskSend) -> AbstractContextManager[Any]:
    """Return the context managers of all middleware for one send, the outermost first. A dry run has none.

    Raises ImproperlyConfigured for an invalid middleware, and whatever a middleware raises.
    """
    wrappers = _wrappers(options.middleware)
    return _within(wrappers, send) if wrappers and not is_dry_run() else nullcontext()


@contextmanager
def _within(wrappers: tuple[Wrapper, ...], send: TaskSend) -> Iterator[None]:
    with ExitStack() as stack:
        for wrapper in wrappers:
            stack.enter_context(wrapper(send))
        yield


@functools.cache
def _wrappers(paths: tuple[str, ...]) -> tuple[Wrapper, ...]:
    methods = (getattr(load_factory(path), "around_send", None) for path in paths)
    return tuple(wrapper for wrapper in methods if wrapper not in (None, ContextMiddleware.around_send))
