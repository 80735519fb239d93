"""Signed tokens with which their bearers may read the events of one task."""

from __future__ import annotations

import time
from typing import Final
from uuid import UUID

from django.core import signing

_SALT: Final = "horsies_django.stream_token"

#: Seconds, ten years.
_LONGEST: Final = 315_360_000


def make(backend: str, task_id: UUID, max_age: float) -> str:
    """Return a token for a task of a backend that is valid for ``max_age`` seconds. Raises ValueError for a bad age."""
    if isinstance(max_age, bool) or not isinstance(max_age, int | float) or not 0 < max_age <= _LONGEST:
        raise ValueError(f"max_age is {max_age!r}; allowed: seconds above 0, at most {_LONGEST}.")
    return signing.dumps([backend, str(task_id), time.time() + max_age], salt=_SALT)


def backend_of(token: str, task_id: UUID) -> str | None:
    """Return the backend for which a token opens a task; None if it opens another one, has expired or is no token."""
    try:
        backend, signed_id, expires_at = signing.loads(token, salt=_SALT)
    except signing.BadSignature:
        return None
    return backend if signed_id == str(task_id) and time.time() < expires_at else None
