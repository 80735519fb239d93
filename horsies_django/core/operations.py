"""The log of operators' actions: the user, the action, its targets and their number. The admin keeps its own log too.

Each action writes one INFO line of ``key=value`` to the logger ``horsies_django.operations``. Commands, operator
functions, handles and ``task.cancel()`` do so, whether called from a shell or from the project's code. Querysets of
tasks don't: the engine uses them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from django.db.models import QuerySet

logger = logging.getLogger("horsies_django.operations")

#: Maximum ids or names in one line.
NAMED: Final = 20

_actor: ContextVar[tuple[str, str] | None] = ContextVar("horsies_django_actor", default=None)

_PLAIN: Final = re.compile(r"[\w.:@/+-]+", re.ASCII)


@contextmanager
def acting_as(user: str, via: str) -> Iterator[None]:
    """Attribute the actions in this block to a user, such as that of an admin request; ``via`` is their origin."""
    token = _actor.set((user, via))
    try:
        yield
    finally:
        _actor.reset(token)


def log_operation(act: str, count: int, **what: Any) -> None:
    """Log an action, the number of rows that it changed, and more facts; those that are None are left out.

    >>> log_operation("queue.pause", 1, queue="emails")
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    from .platform import system_user  # here: a process that only sends needs no more of that module

    user, via = _actor.get() or (system_user(), "python")
    facts = {"user": user, "via": via, "act": act, "count": count, **what}
    line = " ".join(f"{name}={_value(value)}" for name, value in facts.items() if value is not None)
    logger.info("%s", line)


def names_of(rows: QuerySet[Any], field: str = "name") -> list[Any] | None:
    """Return the names of the first of these rows, before an action changes them; None if the log is off."""
    return list(rows.values_list(field, flat=True)[: NAMED + 1]) if logger.isEnabledFor(logging.INFO) else None


def _value(value: Any) -> str:
    if isinstance(value, Iterable) and not isinstance(value, str):
        texts = [str(item) for item in value]
        text = ",".join(texts[:NAMED]) + (f",+{len(texts) - NAMED}" if len(texts) > NAMED else "")
    else:
        text = str(value)
    return text if _PLAIN.fullmatch(text.replace(",", "")) else json.dumps(text, ensure_ascii=False)
