"""Headers: values that middleware adds to a task's metadata when it is sent."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from .middleware import load_factory
from .options import Options
from .serialization import check_size, dumps, encode

#: The metadata key with the slot of a scheduled run. It is in the metadata because a claim reads that anyway.
SCHEDULED_FOR: Final = "horsies.scheduled_for"

#: The metadata key with the number of times that the body has called ``context.restart()``.
RESTARTS: Final = "horsies.restarts"


def of_slot(slot: datetime | None) -> dict[str, Any]:
    """Return the header for a run of this slot of a schedule; an empty dict without a slot."""
    return {} if slot is None else {SCHEDULED_FOR: slot.astimezone(UTC).isoformat()}


def slot_in(metadata: object) -> datetime | None:
    """Return the slot in metadata, in UTC; None if there is none or it is not an aware datetime."""
    text = metadata.get(SCHEDULED_FOR) if isinstance(metadata, Mapping) else None
    try:
        slot = datetime.fromisoformat(text) if isinstance(text, str) else None
        return None if slot is None or slot.tzinfo is None else slot.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def encode_metadata(metadata: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Return metadata encoded as JSON values.

    Raises TypeError or ValueError for a value that can't be stored, and ValueError for more than ``max_payload_bytes``
    bytes.
    """
    encoded: dict[str, Any] = encode(metadata, typed=False, where="metadata")
    check_size(dumps(encoded), options.max_payload_bytes, "metadata")
    return encoded


def collect(options: Options) -> dict[str, Any]:
    """Return the headers of all middleware for a task that is sent now. Later middleware overrides earlier.

    Raises TypeError if ``headers()`` returns no dict, the errors of :func:`encode_metadata`, and those of the
    middleware.
    """
    metadata: dict[str, Any] = {}
    for path, provide in _providers(options.middleware):
        headers = provide()
        if not isinstance(headers, Mapping):
            raise TypeError(f"headers() of middleware {path!r} gave {headers!r}; allowed: a dict.")
        metadata |= headers
    return encode_metadata(metadata, options) if metadata else metadata


def inject(options: Options, metadata: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the metadata of a call with the headers added; None if there are no headers.

    Raises as above, and the errors of :func:`check_reserved`.
    """
    headers = collect(options)
    check_reserved(options, metadata, headers)
    return encode_metadata({**headers, **metadata}, options) if headers and metadata else headers or None


def check_reserved(options: Options, metadata: Mapping[str, Any] | None, headers: Mapping[str, Any]) -> None:
    """Raise ValueError if metadata has a key that is reserved for middleware.

    Reserved keys are those of ``headers``, the headers of this send, and those in the ``reserved_headers`` of
    middleware, even if it adds no such header now.
    """
    for path, names in _reserved(options.middleware):
        if taken := sorted(names & (metadata or {}).keys()):
            _refuse(taken[0], f"middleware {path!r}")
    if taken := sorted(headers.keys() & (metadata or {}).keys()):
        _refuse(taken[0], "the middleware of OPTIONS")


def _refuse(key: str, owner: str) -> NoReturn:
    raise ValueError(f"metadata has the key {key!r}; allowed: other keys; {owner} reserves this one.")


@functools.cache
def _reserved(paths: tuple[str, ...]) -> tuple[tuple[str, frozenset[str]], ...]:
    return tuple((path, frozenset(getattr(load_factory(path), "reserved_headers", ()))) for path in paths)


@functools.cache
def _providers(paths: tuple[str, ...]) -> tuple[tuple[str, Callable[[], Any]], ...]:
    providers = [(path, getattr(load_factory(path), "headers", None)) for path in paths]
    return tuple((path, provide) for path, provide in providers if provide is not None)
