"""Dry runs: code in a dry run validates what it sends but inserts nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_IS_DRY: Final[ContextVar[bool]] = ContextVar("horsies_dry", default=False)


@contextmanager
def dry_run() -> Iterator[None]:
    """Insert nothing that this block sends. The handles in it belong to tasks that don't exist."""
    token = _IS_DRY.set(True)
    try:
        yield
    finally:
        _IS_DRY.reset(token)


#: Returns whether this code is in a dry run.
is_dry_run: Final = _IS_DRY.get
