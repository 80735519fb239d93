"""A one-line excerpt of a task's arguments for lists, masked as on the task's page.

Large values are not read, so a page of fifty tasks with megabytes of arguments costs no more than any other.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, Final

from django.db.models import Case, QuerySet, TextField, When
from django.db.models.functions import Cast
from django.template.defaultfilters import filesizeformat

from ...core.mask import Mask
from ...db.expressions import StoredSize
from .contents import PARTS, Contents, contents_of
from .json_text import head

#: Maximum number of characters in an excerpt.
MAX_LENGTH: Final = 72

#: Maximum stored size in bytes of a value that is read.
MAX_BYTES: Final = 4_000

#: Characters of indented JSON to read of one value, which is longer than on one line.
_INDENTED: Final = 4 * MAX_LENGTH

#: The columns of a call, each with the name of the annotation that has its size.
_SIZES: Final = {"args": "args_size", "kwargs": "kwargs_size"}

#: The same for another column that searches read.
_SEARCHED_SIZES: Final = {**_SIZES, "metadata": "metadata_size"}

#: JSON strings have no line breaks, so all line breaks belong to the indentation.
_BEFORE_OR_AFTER_BRACKET: Final = re.compile(r"(?<=[\[{])\n *|\n *(?=[\]}])")
_BETWEEN: Final = re.compile(r"\n *")


def with_short_arguments(
    tasks: QuerySet[Any], limit: int = MAX_BYTES, parts: Collection[str] = tuple(_SIZES)
) -> QuerySet[Any]:
    """Read the stored size of each task's arguments, and the arguments if they take at most ``limit`` bytes.

    ``parts`` may name the metadata too.
    """
    of = {part: size for part, size in _SEARCHED_SIZES.items() if part in parts}
    sizes: dict[str, Any] = {size: StoredSize(part) for part, size in of.items()}
    texts: dict[str, Any] = {
        PARTS[part]: Case(When(**{f"{size}__lte": limit}, then=Cast(part, TextField())), default=None)
        for part, size in of.items()
    }
    rows: QuerySet[Any] = tasks.annotate(**sizes).annotate(**texts)
    return rows


def excerpt_of(task: Any) -> str:
    """Return the arguments of a task from :func:`with_short_arguments` as in a call, cut at ``MAX_LENGTH``.

    Values that were too large to be read appear as their size.
    """
    words = ""
    for part in _parts(task, contents_of(task)):
        words = f"{words}, {part}" if words else part
        if len(words) > MAX_LENGTH:
            return f"{words[: MAX_LENGTH - 1]}…"
    return words


def _parts(task: Any, contents: Contents) -> Iterator[str]:
    for part in _SIZES:
        if (size := getattr(task, _SIZES[part], None) or 0) > MAX_BYTES:
            yield f"({filesizeformat(size)})"
        elif contents.is_filled(part):
            yield from _members(part, contents)


def _members(part: str, contents: Contents) -> Iterator[str]:
    value = contents.visible(part)
    if part == "args" and isinstance(value, list):
        yield from (one_line(member, contents.mask) for member in value)
    elif part == "kwargs" and isinstance(value, dict):
        yield from (
            f"{name}={one_line(contents.mask.apply(name, member), contents.mask)}" for name, member in value.items()
        )
    else:  # a damaged row
        yield one_line(value, contents.mask)


def one_line(value: Any, mask: Mask) -> str:
    """Return the beginning of a value as masked JSON on one line."""
    text, is_all = head(value, mask, _INDENTED)
    line = _BETWEEN.sub(" ", _BEFORE_OR_AFTER_BRACKET.sub("", text))
    return line if is_all else f"{line}…"
