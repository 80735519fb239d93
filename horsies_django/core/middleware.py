"""Middleware: what goes round the body of each task, and what travels with a task from where it was sent.

OPTIONS["middleware"] lists it, the outermost first. As in Django a middleware is made once, of what it goes round:

>>> def timed(run):
...     def around(call):
...         began = time.monotonic()
...         try:
...             return run(call)
...         finally:
...             logger.info("%s took %.3f s", call.task_name, time.monotonic() - began)
...     return around

What it returns is what the body returned, and what it raises the body raised: policies, time limits and cancels treat
both as one. ``sync_capable`` and ``async_capable`` (Django's decorators of ``django.utils.decorators``) say round what
it can go without a change of threads. One that has a function ``headers()`` is asked for them by each send.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.utils import timezone, translation

from .compat import FrameworkTask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskCall:
    """One attempt at a task, as middleware sees it. It costs no query, and nothing in it changes the row.

    ``attempt`` counts from 1; ``metadata`` are the headers that came with it; ``workflow_id`` is that of the outermost
    workflow that it is a node of, if it is one.
    """

    id: UUID
    task: FrameworkTask[..., Any]
    task_name: str
    queue_name: str
    priority: int
    attempt: int
    enqueued_at: datetime
    #: These three may be sensitive, and a middleware logs what it is given.
    args: tuple[Any, ...] = field(repr=False)
    kwargs: Mapping[str, Any] = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False)
    workflow_id: UUID | None
    #: Calls the function itself; of a coroutine's chain it gives what is to be awaited.
    body: Callable[[], Any] = field(repr=False)


#: What a middleware goes round, and what it makes of it.
Run = Callable[[TaskCall], Any]


class ContextMiddleware:
    """Round each body a context manager, whose blocks a function and a coroutine have alike.

    Override :meth:`within`, and :meth:`headers` if something is to travel. The manager must not block: round a
    coroutine it is entered on the event loop.
    """

    sync_capable: ClassVar[bool] = True
    async_capable: ClassVar[bool] = True
    #: Keys of metadata that only this middleware may send, also while its ``headers()`` has no value for them.
    reserved_headers: ClassVar[Collection[str]] = ()

    def __init__(self, run: Run) -> None:
        self._run = run
        if iscoroutinefunction(run):
            markcoroutinefunction(self)

    def __call__(self, call: TaskCall) -> Any:
        """Run what it goes round."""
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
        """Return what is to travel with a task that is sent now."""
        return {}


class LocaleMiddleware(ContextMiddleware):
    """The language that is active where a task is sent is active in its body. It travels as ``language``."""

    reserved_headers = ("language",)

    def within(self, call: TaskCall) -> AbstractContextManager[Any]:
        """Activate the language that came along, if one did."""
        language = call.metadata.get("language")
        return translation.override(language) if isinstance(language, str) else nullcontext()

    @staticmethod
    def headers() -> Mapping[str, Any]:
        """Return the active language; nothing while translations are off."""
        language = translation.get_language()
        return {"language": language} if language else {}


class TimezoneMiddleware(ContextMiddleware):
    """The time zone that is current where a task is sent is current in its body. It travels as ``timezone``, by name.

    One without a name, such as a fixed offset, does not travel.
    """

    reserved_headers = ("timezone",)

    def within(self, call: TaskCall) -> AbstractContextManager[Any]:
        """Activate the time zone that came along, if one did."""
        zone = call.metadata.get("timezone")
        return timezone.override(zone) if isinstance(zone, str) else nullcontext()

    @staticmethod
    def headers() -> Mapping[str, Any]:
        """Return the name of the current time zone."""
        name = getattr(timezone.get_current_timezone(), "key", None)
        return {"timezone": name} if name else {}
