"""Keeps what a task leaves behind from the next one: context variables, and transactions that it has left open.

This sends nothing to the server: Django and the driver know the state of a connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from operator import is_
from typing import Any, Final, ParamSpec, TypeVar

from django.core.cache import caches
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..core.compat import task_backends
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


@contextmanager
def rolling_back_open_transactions(execution: Execution) -> Iterator[None]:
    """Roll back what an execution on its caller's own connections leaves open, and nothing that was open before.

    The connections are not dropped: the caller's transaction, or a database in memory, would go with them.
    """
    connection: BaseDatabaseWrapper
    depths = {connection: len(connection.atomic_blocks) for connection in connections.all(initialized_only=True)}
    open_before = {connection for connection in depths if is_in_transaction(connection)}
    yield
    for connection in connections.all(initialized_only=True):
        left = connection.atomic_blocks[depths.get(connection, 0) :]
        for block in reversed(left):
            block.__exit__(_AbandonedBlock, _AbandonedBlock(), None)
        is_left_open = connection not in open_before and is_in_transaction(connection)
        if is_left_open:
            connection.rollback()
            connection.set_autocommit(True)
        if left or is_left_open:
            log_open_transaction(execution, connection.alias)


class _AbandonedBlock(Exception):
    """Ends an atomic block that an execution has left open."""


def is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
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


def log_open_transaction(execution: Execution | None, alias: str) -> None:
    """Log that an execution has left a transaction open."""
    logger.error(
        "task left a transaction open id=%s name=%s database=%s: rolled back",
        execution.task_id if execution else "unknown",
        execution.claimed.task_name if execution else "unknown",
        alias,
    )
