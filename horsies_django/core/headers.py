"""Headers: what travels with a task from where it is sent, in its metadata."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from .middleware_loader import factory_at
from .options import Options
from .serialization import check_size, dumps, encode

#: The key under which a run that a schedule has sent carries its slot: a claim reads the metadata anyway.
SCHEDULED_FOR: Final = "horsies.scheduled_for"


def of_slot(slot: datetime | None) -> dict[str, Any]:
    """Return the header of a run for this slot of a schedule; nothing for a run that has none."""
    return {} if slot is None else {SCHEDULED_FOR: slot.astimezone(UTC).isoformat()}


def slot_in(metadata: object) -> datetime | None:
    """Return the slot that metadata names, in UTC; None if it names none, or what is no aware time."""
    text = metadata.get(SCHEDULED_FOR) if isinstance(metadata, Mapping) else None
    try:
        slot = datetime.fromisoformat(text) if isinstance(text, str) else None
        return None if slot is None or slot.tzinfo is None else slot.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def stored(metadata: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Return metadata as JSON has it.

    Raises TypeError or ValueError for what can't be stored, and ValueError for more than ``max_payload_bytes``.
    """
    encoded: dict[str, Any] = encode(metadata, typed=False, where="metadata")
    check_size(dumps(encoded), options.max_payload_bytes, "metadata")
    return encoded


def collect(options: Options) -> dict[str, Any]:
    """Return what the middleware says is to travel with a task that is sent now; of one name, the last one's word.

    Raises TypeError for what is no dict, what :func:`stored` raises, and whatever the middleware raises.
    """
    found: dict[str, Any] = {}
    for path, provide in _providers(options.middleware):
        headers = provide()
        if not isinstance(headers, Mapping):
            raise TypeError(f"headers() of middleware {path!r} gave {headers!r}; allowed: a dict.")
        found |= headers
    return stored(found, options) if found else found


def inject(options: Options, metadata: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the metadata of a call with the headers; None if there are none to add.

    Raises as above, and what :func:`check_reserved` raises.
    """
    headers = collect(options)
    check_reserved(options, metadata, headers)
    return stored({**headers, **metadata}, options) if headers and metadata else headers or None


def check_reserved(options: Options, metadata: Mapping[str, Any] | None, headers: Mapping[str, Any]) -> None:
    """Raise ValueError if metadata has a key that is reserved for middleware.

    Reserved are the keys of ``headers``, which are those of this send, and what middleware names in
    ``reserved_headers``: also where it sends no such header now, nobody else may.
    """
    for path, names in _reserved(options.middleware):
        if taken := sorted(names & (metadata or {}).keys()):
            _refuse(taken[0], f"middleware {path!r}")
    if taken := sorted(headers.keys() & (metadata or {}).keys()):
        _refuse(taken[0], "the middleware of OPTIONS")


def _refuse(key: str, owner: str) -> NoReturn:
    raise ValueError(f"metadata has the key {key!r}; allowed: others, for this one is a header of {owner}.")


@functools.cache
def _reserved(paths: tuple[str, ...]) -> tuple[tuple[str, frozenset[str]], ...]:
    return tuple((path, frozenset(getattr(factory_at(path), "reserved_headers", ()))) for path in paths)


@functools.cache
def _providers(paths: tuple[str, ...]) -> tuple[tuple[str, Callable[[], Any]], ...]:
    found = [(path, getattr(factory_at(path), "headers", None)) for path in paths]
    return tuple((path, provide) for path, provide in found if provide is not None)
