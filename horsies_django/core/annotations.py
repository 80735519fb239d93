"""The annotations of the project's functions and classes, some of which name types that exist only for type checkers.

Since Python 3.14 an annotation is evaluated when it is read, and to read one with such a name raises NameError.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_type_hints

logger = logging.getLogger(__name__)

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def bare_signature(func: Callable[..., Any], *, follow_wrapped: bool = True) -> inspect.Signature:
        """Return the signature of a callable. Its annotations may be unresolved."""
        return inspect.signature(func, follow_wrapped=follow_wrapped, annotation_format=Format.FORWARDREF)

    def annotations_of(thing: Any, *, as_text: bool = False) -> Mapping[str, Any]:
        """Return the annotations of a function or class, which may be unresolved, or their source code."""
        try:
            return get_annotations(thing, format=Format.STRING if as_text else Format.FORWARDREF)
        except Exception as error:  # noqa: BLE001  # such as "Name" | None, which until 3.13 the module would have raised
            logger.debug("annotations not evaluated of=%r error=%r", thing, error)
            return {}

else:
    bare_signature = inspect.signature

    def annotations_of(thing: Any, *, as_text: bool = False) -> Mapping[str, Any]:
        """Return the annotations of a function or class. Unresolved ones are their source code."""
        return inspect.get_annotations(thing)


def hints_of(thing: Any) -> Mapping[str, Any]:
    """Return the hints of a function or class by name, without those that can't be resolved at run time."""
    try:
        return get_type_hints(thing, include_extras=True)
    except Exception:  # noqa: BLE001  # evaluates the project's expressions, which may raise anything
        return dict(_resolved_hints(thing))


def _resolved_hints(thing: Any) -> Iterator[tuple[str, Any]]:
    for name, annotation in annotations_of(thing).items():
        holder = type("_Holder", (), {"__annotations__": {name: annotation}, "__module__": thing.__module__})
        try:
            yield from get_type_hints(holder, include_extras=True).items()
        except Exception as error:  # noqa: BLE001  # evaluates the project's expression, which may raise anything
            logger.debug("type hint not resolved name=%s of=%r error=%r", name, thing, error)
