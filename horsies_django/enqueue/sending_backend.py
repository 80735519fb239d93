"""The interface of the backend that tasks call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db.models import QuerySet

from ..core.backends import ConfiguredBackend

if TYPE_CHECKING:
    from .handle import TaskHandle


class SendingBackend(ConfiguredBackend, ABC):
    """A backend that inserts the calls of tasks; :class:`~.backend.HorsiesBackend` is the only one."""

    @abstractmethod
    def send(self, task: Any, args: Any, kwargs: Any, *, own: Mapping[str, Any] | None = None) -> TaskHandle[Any]:
        """Insert a call in the current transaction and return its handle. ``own`` sets columns for this call only."""

    @abstractmethod
    def send_many(self, task: Any, calls: Iterable[Mapping[str, Any]]) -> Sequence[TaskHandle[Any]]:
        """Insert many calls in the current transaction. Sends no signals."""

    @abstractmethod
    def cancel(self, unique_key: str, *, include_running: bool = False) -> bool:
        """Cancel the live task that holds ``unique_key``; return whether there was one to cancel."""

    async def asend(self, task: Any, args: Any, kwargs: Any) -> TaskHandle[Any]:
        """See :meth:`send`. Runs in the thread that has the caller's transaction."""
        return await self._send_in_thread(task, args, kwargs)

    @cached_property
    def _send_in_thread(self) -> Callable[..., Awaitable[TaskHandle[Any]]]:
        return sync_to_async(self.send, thread_sensitive=True)

    async def asend_many(
        self, task: Any, calls: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]
    ) -> Sequence[TaskHandle[Any]]:
        """See :meth:`send_many`.

        An async iterable is read to its end first: while it waits, it would keep a transaction open in the thread that
        all async code of the request shares. A queryset is read in that thread.
        """
        if isinstance(calls, AsyncIterable) and not isinstance(calls, QuerySet):
            # Copied, because a generator may yield one dict again and again.
            calls = [dict(call) if isinstance(call, dict) else call async for call in calls]
        return await sync_to_async(self.send_many, thread_sensitive=True)(task, calls)
