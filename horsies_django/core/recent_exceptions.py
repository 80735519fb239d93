"""The exceptions of tasks that have failed in this process: the causes that ``TaskHandle.value()`` can name.

Rows keep an exception's class, message and traceback as text; the object is gone with the process that had it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final
from uuid import UUID

#: How many are kept. Each holds the frames of its traceback.
KEPT: Final = 20

_exceptions: Final[OrderedDict[UUID, BaseException]] = OrderedDict()
_lock: Final = threading.Lock()


def keep(task_id: UUID, exception: BaseException) -> None:
    """Keep the exception that a task has failed with, and forget the oldest if there are too many."""
    with _lock:
        _exceptions[task_id] = exception
        _exceptions.move_to_end(task_id)
        if len(_exceptions) > KEPT:
            _exceptions.popitem(last=False)


def find(task_id: UUID, class_path: str | None) -> BaseException | None:
    """Return the exception that a task has failed with in this process, if it is of the class of that dotted name."""
    with _lock:
        exception = _exceptions.get(task_id)
    if exception is None or class_path != f"{type(exception).__module__}.{type(exception).__qualname__}":
        return None  # the task has been retried since, by another process
    return exception
