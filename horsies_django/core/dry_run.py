"""Code that is only tried out: what it sends is judged as ever, and then not sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_IS_DRY: Final[ContextVar[bool]] = ContextVar("horsies_dry", default=False)


@contextmanager
def dry_run() -> Iterator[None]:
    """Keep what is sent inside from being inserted; its handles are those of tasks that never were."""
    token = _IS_DRY.set(True)
    try:
        yield
    finally:
        _IS_DRY.reset(token)


def is_dry_run() -> bool:
    """Whether nothing is to be sent."""
    return _IS_DRY.get()
