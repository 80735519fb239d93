"""The news that tasks have ended: how it is written, and for how long somebody wants to hear it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

#: Seconds for which a worker tells of ends after somebody has said that he waits. Who still waits says so more often.
TOLD_FOR: Final = 10.0
SAID_EVERY: Final = 4.0

#: A task goes by the last digits of its id: who mistakes another one for it looks once in vain.
_DIGITS: Final = 8

#: Tasks in one notification; PostgreSQL takes 8,000 bytes.
_TASKS: Final = 900


def mark(key: UUID) -> str:
    """Return what a task goes by."""
    return key.hex[-_DIGITS:]


def dumps(keys: Sequence[UUID]) -> list[str]:
    """Return the payloads that tell of these tasks' ends."""
    marks = [mark(key) for key in keys]
    return ["".join(marks[start : start + _TASKS]) for start in range(0, len(marks), _TASKS)]


def loads(payload: str) -> set[str]:
    """Return the marks in a payload."""
    return {payload[start : start + _DIGITS] for start in range(0, len(payload), _DIGITS)}
