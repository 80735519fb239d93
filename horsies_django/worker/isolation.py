"""Keeps what a task leaves behind from the next one: context variables, and transactions that it has left open.

This sends nothing to the server: Django and the driver know the state of a connection.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from operator import is_
from typing import Any, Final, ParamSpec, TypeVar

from django.core.cache import caches
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..core.compat import task_backends
from ..core.current_task import current_run
from ..db import postgres
from .execution import Execution

P = ParamSpec("P")
T = TypeVar("T")

#: Django keeps the objects of these handlers in context variables, one for each alias. They should last for the thread.
_HANDLERS: Final[tuple[Any, ...]] = (caches, task_backends)


def isolated(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``function`` in a copy of this thread's context, and drop the copy afterwards.

    Caches and task backends that it is the first to use stay with the thread: a cache may hold a connection.
    """
    before = copy_context()
    context = before.copy()
    try:
        return context.run(function, *args, **kwargs)
    finally:
        if len(context) != len(before) or not all(map(is_, context.values(), before.values())):
            for handler in _HANDLERS:
                _keep_made(handler, context)


def _keep_made(handler: Any, context: Context) -> None:
    """Keep for this thread what ``handler`` has made in a context, unless the thread has an object of that alias."""
    made = context.run(_made, handler)
    for alias in made.keys() - _made(handler).keys():
        handler[alias] = made[alias]


def _made(handler: Any) -> dict[str, Any]:
    """Return the objects of this context by alias, which ``handler.all()`` does not return."""
    kept = handler._connections
    return {alias: getattr(kept, alias) for alias in handler if hasattr(kept, alias)}


logger = logging.getLogger("horsies_django.worker")


def drop_connections() -> None:
    """Close this thread's connections and drop what Django keeps of them.

    An interrupt may arrive while a transaction begins or ends. Django's state of the connection is then wrong for good:
    even after a close it would assume that the transaction is open.
    """
    for connection in connections.all(initialized_only=True):
        _drop_connection(connection)


def clean_up_connections(execution: Execution | None, *, close: bool = False) -> None:
    """Drop each connection of this thread that an execution has left in a transaction, and log that.

    Others are closed if they are old or broken, or if ``close`` is set. With DEBUG, Django logs the queries of each
    connection: the log begins anew, as it does for each request.
    """
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        if _is_in_transaction(connection):
            _drop_connection(connection)
            _log(execution, connection.alias)
        elif close:
            connection.close()
        else:
            connection.close_if_unusable_or_obsolete()


@contextmanager
def rolling_back_open_transactions(execution: Execution) -> Iterator[None]:
    """Roll back what an execution on its caller's own connections leaves open, and nothing that was open before.

    The connections are not dropped: the caller's transaction, or a database in memory, would go with them.
    """
    connection: BaseDatabaseWrapper
    depths = {connection: len(connection.atomic_blocks) for connection in connections.all(initialized_only=True)}
    open_before = {connection for connection in depths if _is_in_transaction(connection)}
    yield
    for connection in connections.all(initialized_only=True):
        left = connection.atomic_blocks[depths.get(connection, 0) :]
        for block in reversed(left):
            block.__exit__(_AbandonedBlock, _AbandonedBlock(), None)
        is_left_open = connection not in open_before and _is_in_transaction(connection)
        if is_left_open:
            connection.rollback()
            connection.set_autocommit(True)
        if left or is_left_open:
            _log(execution, connection.alias)


class SharedThreads(ThreadPoolExecutor):
    """The threads in which coroutines run sync code that needs no thread of its own.

    Each call cleans up its connections.
    """

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="horsies-shared")
        self._used: dict[tuple[int, str], BaseDatabaseWrapper] = {}

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See ThreadPoolExecutor. Remembers the calling execution for the log."""
        return super().submit(self._call, current_run.get(), fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See ThreadPoolExecutor. Also closes the connections of its threads."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        for connection in self._used.values() if wait else ():
            connection.inc_thread_sharing()
            connection.close()

    def _call(self, execution: Execution | None, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        try:
            return isolated(fn, *args, **kwargs)  # loop.run_in_executor() gives it no context of its own
        finally:
            clean_up_connections(execution)
            for connection in connections.all(initialized_only=True):
                self._used[threading.get_ident(), connection.alias] = connection


class _AbandonedBlock(Exception):
    """Ends an atomic block that an execution has left open."""


def _is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether a connection is in a transaction or will begin one with the next statement."""
    if connection.in_atomic_block:
        return True
    if connection.connection is None or not connection.settings_dict["AUTOCOMMIT"]:
        return False  # without AUTOCOMMIT it is always in one, which its owner ends
    return not connection.autocommit or has_open_transaction(connection)


def has_open_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether the database has a transaction open on this connection, as far as its driver knows."""
    if connection.vendor == "sqlite":
        return bool(connection.connection.in_transaction)
    return connection.vendor == "postgresql" and postgres.is_in_transaction(connection)


def _drop_connection(connection: BaseDatabaseWrapper) -> None:
    del connections[connection.alias]
    with suppress(Error):
        connection.close()


def _log(execution: Execution | None, alias: str) -> None:
    logger.error(
        "task left a transaction open id=%s name=%s database=%s: rolled back",
        execution.task_id if execution else "unknown",
        execution.claimed.task_name if execution else "unknown",
        alias,
    )
