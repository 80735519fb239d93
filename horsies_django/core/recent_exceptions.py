"""The exceptions of tasks that failed in this process, as causes for ``TaskHandle.value()``.

Rows keep an exception's class, message and traceback as text; the object is gone with the process that had it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final
from uuid import UUID

#: Maximum exceptions that are kept. Each keeps the frames of its traceback alive.
KEPT: Final = 20

_exceptions: Final[OrderedDict[UUID, BaseException]] = OrderedDict()
_lock: Final = threading.Lock()


def keep(task_id: UUID, exception: BaseException) -> None:
    """Keep the exception of a failed task, and drop the oldest if there are too many."""
    with _lock:
        _exceptions[task_id] = exception
        _exceptions.move_to_end(task_id)
        evicted = [_exceptions.popitem(last=False)[1]] if len(_exceptions) > KEPT else []
    drop_tracebacks(evicted)


def find(task_id: UUID, class_path: str | None) -> BaseException | None:
    """Return the exception of a task that failed in this process, if its class has this dotted name."""
    with _lock:
        exception = _exceptions.get(task_id)
    if exception is None or class_path != f"{type(exception).__module__}.{type(exception).__qualname__}":
        return None  # another process has retried the task since
    return exception


def drop_tracebacks(exceptions: Sequence[BaseException]) -> None:
    """Drop the tracebacks of these exceptions, of their causes and of what they group.

    The frames of a traceback refer back to the exception. So they, and all local variables of the body, would stay in
    memory until a garbage collection.
    """
    remaining, seen = list(exceptions), set[int]()
    while remaining:
        exception = remaining.pop()
        if id(exception) not in seen:
            seen.add(id(exception))
            exception.__traceback__ = None
            remaining += filter(None, (exception.__cause__, exception.__context__))
            remaining += exception.exceptions if isinstance(exception, BaseExceptionGroup) else ()
