"""What operators did, in the log: who, what, to which, to how many. The admin keeps its own entries as well.

Each act writes one line at INFO, ``key=value``, to the logger ``horsies_django.operations``. Commands, functions for
operators, handles and ``task.cancel()`` act; a call from a prompt looks like one from the project's code, so both write
a line. Querysets of tasks write none, for the engine itself uses them.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from django.db.models import QuerySet

logger = logging.getLogger("horsies_django.operations")

#: Ids, or names, that one line has at most.
NAMED: Final = 20

_actor: ContextVar[tuple[str, str] | None] = ContextVar("horsies_django_actor", default=None)

_PLAIN: Final = re.compile(r"[\w.:@/+-]+", re.ASCII)


@contextmanager
def acting_as(user: str, via: str) -> Iterator[None]:
    """Have acts in this block be those of this user: of the admin's request, say. ``via`` is where they come from."""
    token = _actor.set((user, via))
    try:
        yield
    finally:
        _actor.reset(token)


def system_user() -> str:
    """Return the name of the operating system's user, or its number if it has no name, as in many a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def log_operation(act: str, count: int, **what: Any) -> None:
    """Log an act: what it is, to how many rows it was done, and to which; facts that are None are left out.

    >>> log_operation("queue.pause", 1, queue="emails")
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    user, via = _actor.get() or (system_user(), "python")
    facts = {"user": user, "via": via, "act": act, "count": count, **what}
    said = " ".join(f"{name}={_value(value)}" for name, value in facts.items() if value is not None)
    logger.info("%s", said)


def names_of(rows: QuerySet[Any], field: str = "name") -> list[Any] | None:
    """Return the names of the first of these rows, read before an act changes them; None if no line is written."""
    return list(rows.values_list(field, flat=True)[: NAMED + 1]) if logger.isEnabledFor(logging.INFO) else None


def _value(value: Any) -> str:
    if isinstance(value, Iterable) and not isinstance(value, str):
        texts = [str(one) for one in value]
        text = ",".join(texts[:NAMED]) + (f",+{len(texts) - NAMED}" if len(texts) > NAMED else "")
    else:
        text = str(value)
    return text if _PLAIN.fullmatch(text.replace(",", "")) else json.dumps(text, ensure_ascii=False)
