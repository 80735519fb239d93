"""Values to JSON and back, and texts that every database takes.

The plain form follows the rules of Django's framework. The rich form (``"serializer": "rich"``) tags values for which
JSON has no type, so that decoding restores them: the types below, and registered dataclasses. Both reject what some
database rejects: NaN, infinities, NUL characters and lone surrogates.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from .annotations import bare_signature
from .exceptions import NotRegistered
from .registry import path_of, registry

TAG: Final = "$type"

#: Maximum characters of an error text. The end of a traceback says more than its start, so the end is kept.
MAX_TEXT: Final = 32_768


def _writer(encoder: json.JSONEncoder) -> Callable[[Any], str]:
    """Return a function that writes values as an encoder does, without its check for circular references.

    An encoder makes a C encoder for every value. This one is made once; without the C module, there is none.
    """
    make, escape = getattr(json.encoder, "c_make_encoder", None), json.encoder.encode_basestring
    if make is None:
        return encoder.encode
    if encoder.ensure_ascii:
        escape = json.encoder.encode_basestring_ascii
    chunks: Callable[[Any, int], Sequence[str]] = make(
        None, encoder.default, escape, None, encoder.key_separator, encoder.item_separator, False, False, False
    )
    return lambda value: "".join(chunks(value, 0))


#: Writes an encoded value as JSON text.
dumps: Final = _writer(json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")))

#: The same as Django's JSONField writes it, for SQLite, where queries compare the texts.
dumps_for_sqlite: Final = _writer(json.JSONEncoder())

# bool and datetime come before their base classes: the first match wins.
_RICH: Final[dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]]] = {
    datetime.datetime: ("datetime", datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.date: ("date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: ("time", datetime.time.isoformat, datetime.time.fromisoformat),
    datetime.timedelta: (
        "timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda stored: datetime.timedelta(*stored),
    ),
    UUID: ("uuid", str, UUID),
    Decimal: ("decimal", str, Decimal),
}
_DECODERS: Final = {tag: decode for tag, _, decode in _RICH.values()}


def encode(value: Any, *, typed: bool, where: str) -> Any:
    """Return ``value`` as a JSON value.

    ``where`` names the value in the error. Raises TypeError for a type that has no JSON form and ValueError for a value
    that no database takes, or that is nested too deeply.
    """
    try:
        return _encode(value, typed, where)
    except RecursionError:
        raise ValueError(f"Unsupported value: {where} is nested too deeply.") from None


def _encode(value: Any, typed: bool, where: str) -> Any:
    match value:
        case str():
            return _checked_text(value, where)
        case None | bool() | int():
            return value
        case float():
            if not math.isfinite(value):
                raise ValueError(f"Unsupported value: {value} in {where} (NaN and infinities are not JSON).")
            return value
        case bytes():
            try:
                return _checked_text(value.decode(), where)
            except UnicodeDecodeError as error:
                raise ValueError(f"Unsupported value: {type(value)} in {where} is not UTF-8 text.") from error
        case Mapping():
            return _encode_mapping(value, typed, where)
        case Sequence():
            return [_encode(item, typed, f"{where}[{index}]") for index, item in enumerate(value)]
        case _ if typed:
            return _encode_rich(value, where)
        case _:
            raise TypeError(
                f"Unsupported type: {type(value)} in {where} "
                '(plain JSON only; "serializer": "rich" takes dates, UUIDs, Decimals and dataclasses).'
            )


def decode(stored: Any, *, typed: bool) -> Any:
    """Return the value that :func:`encode` was given.

    Raises ValueError for a tag that it does not know, and NotRegistered for a dataclass that is not registered.
    """
    if not typed:
        return stored
    if isinstance(stored, list):
        return [decode(item, typed=True) for item in stored]
    if not isinstance(stored, dict):
        return stored
    if TAG not in stored:
        return {key: decode(item, typed=True) for key, item in stored.items()}
    return _decode_tagged(stored)


def decode_call(args: Any, kwargs: Any, *, typed: bool) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a stored call. Raises ValueError if they are not a list and a dict.

    Each value is decoded by itself, as it was encoded: the names of arguments are never taken for tags.
    """
    if not (isinstance(args, list) and isinstance(kwargs, dict)):
        raise ValueError(
            f"args is {type(args).__name__} and kwargs is {type(kwargs).__name__}; a row has a list and a dict."
        )
    return [decode(value, typed=typed) for value in args], {name: decode(kwargs[name], typed=typed) for name in kwargs}


def decode_problems(stored: Any) -> Iterator[str]:
    """Yield a clause for each part of a typed value that :func:`decode` can't read.

    Makes no dataclass and quotes no value. Raises RecursionError for a value that is nested too deeply.
    """
    if isinstance(stored, list):
        for item in stored:
            yield from decode_problems(item)
    elif isinstance(stored, dict):
        if TAG in stored:
            yield from _tag_problems(stored)
        else:
            yield from decode_problems(list(stored.values()))


def has_tags(stored: Any) -> bool:
    """Whether a stored value has type tags. Raises RecursionError for a value that is nested too deeply."""
    if isinstance(stored, dict):
        return TAG in stored or any(map(has_tags, stored.values()))
    return isinstance(stored, list) and any(map(has_tags, stored))


def check_size(text: str, limit: int | None, where: str) -> None:
    """Raise ValueError if a JSON text has more bytes than the limit."""
    if limit is not None and len(text) * 4 > limit and (size := len(text.encode())) > limit:
        raise ValueError(f"{where} is too large: {size:,} bytes of JSON; allowed: {limit:,} (max_payload_bytes).")


def clean_text(text: str, limit: int = MAX_TEXT) -> str:
    """Return ``text`` without NUL and lone surrogates, which databases reject; keep its end if it is too long."""
    if len(text) > limit:
        text = f"… {len(text) - limit} characters left out …\n{text[-limit:]}"
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _checked_text(text: str, where: str) -> str:
    if "\0" in text:
        raise ValueError(f"Unsupported value: {where} has a NUL character, which PostgreSQL can't store.")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"Unsupported value: {where} has a lone surrogate, which is not valid text.") from error
    return text


def _encode_mapping(value: Mapping[Any, Any], typed: bool, where: str) -> dict[str, Any]:
    plain = {_key(key, where): _encode(item, typed, f"{where}[{key!r}]") for key, item in value.items()}
    if len(plain) != len(value):
        raise ValueError(f"Unsupported value: {where} has keys that are the same text in JSON.")
    return {TAG: "dict", "value": plain} if typed and TAG in plain else plain


def _key(key: Any, where: str) -> str:
    if isinstance(key, str | bytes):
        return str(_encode(key, False, f"a key of {where}"))
    if key is None or isinstance(key, bool | int | float):
        return json.dumps(_encode(key, False, f"a key of {where}"))  # as JSON itself writes such keys
    raise TypeError(f"Unsupported type: {type(key)} as a key of {where} (keys are text).")


def _encode_rich(value: Any, where: str) -> Any:
    for kind, (tag, to_json, _) in _RICH.items():
        if isinstance(value, kind):
            return {TAG: tag, "value": to_json(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: _encode(getattr(value, field.name), True, f"{where}.{field.name}")
            for field in dataclasses.fields(value)
            if field.init
        }
        return {TAG: "dataclass", "class": _path_of(type(value), where), "value": fields}
    raise TypeError(f"Unsupported type: {type(value)} in {where}.")


def _path_of(kind: type, where: str) -> str:
    """Return the name under which workers find the class. Raises TypeError if they would not."""
    if not registry.has_type(kind):
        allowed = "a dataclass in a module or type hint of tasks or workflows, or one given to register_type()"
        raise TypeError(f"Unsupported type: {kind} in {where}; allowed: {allowed}.")
    return path_of(kind)


def _decode_tagged(stored: dict[str, Any]) -> Any:
    tag, value = stored[TAG], stored.get("value")
    if tag == "dict" and isinstance(value, dict):
        return {key: decode(item, typed=True) for key, item in value.items()}
    if tag == "dataclass" and isinstance(value, dict):
        kind = registry.find_type(stored.get("class"))
        return kind(**{key: decode(item, typed=True) for key, item in value.items()})
    if tag in _DECODERS:
        return _DECODERS[tag](value)
    raise ValueError(f"Unknown tag {tag!r}; known are dict, dataclass, {', '.join(_DECODERS)}.")


def _tag_problems(stored: dict[str, Any]) -> Iterator[str]:
    tag, value = stored[TAG], stored.get("value")
    if tag in ("dict", "dataclass") and isinstance(value, dict):
        if tag == "dataclass":
            yield from _dataclass_problems(stored.get("class"), value)
        yield from decode_problems(list(value.values()))
    elif isinstance(tag, str) and tag in _DECODERS:
        try:
            _DECODERS[tag](value)
        except Exception:  # noqa: BLE001  # whatever a decoder raises for a damaged value
            yield f"a stored {tag} can't be read"
    else:
        yield f"the tag {tag!r} is unknown"


def _dataclass_problems(name: object, fields: Mapping[str, Any]) -> Iterator[str]:
    try:
        kind = registry.find_type(name)
    except NotRegistered:
        yield f"{name!r} is not a registered dataclass"
        return
    try:
        bare_signature(kind).bind(**fields)
    except (TypeError, ValueError) as error:
        yield f"{name}: {error}"
