"""Finds definitions that contain themselves, which could never be built.

It follows only subworkflows without arguments. One with arguments may end: that shows when it is built in a run, where
the number of levels is limited (see engine_tasks.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from weakref import WeakSet

from ..core.dry_run import dry_run
from ..core.exceptions import InvalidWorkflow
from ..core.workflow_errors import DefinitionErrorCode
from .definition_meta import Definition

#: The definitions that are being built, from the outermost; None stands for one with arguments.
_building: Final[ContextVar[tuple[type[Definition] | None, ...]]] = ContextVar("horsies_building", default=())

#: Definitions known not to contain themselves.
_without_recursion: Final[WeakSet[type[Definition]]] = WeakSet()


@contextmanager
def building(definition: type[Definition], *, has_arguments: bool) -> Iterator[None]:
    """Mark a definition as being built in the block."""
    token = _building.set((*_building.get(), None if has_arguments else definition))
    try:
        yield
    finally:
        _building.reset(token)


def find_recursion(definition: type[Definition]) -> str | None:
    """Return the error if this subworkflow, without arguments, makes a definition contain itself; None if not."""
    above = _building.get()
    if definition in above:
        cycle = [one for one in above[above.index(definition) :] if one is not None]
        chain = " >> ".join(str(one._meta.options.definition_key) for one in [*cycle, definition])
        return f"a definition contains itself: {chain}; allowed: no cycle."
    if definition in _without_recursion:
        return None
    problem = _find_recursion_within(definition)
    if problem is None:
        _without_recursion.add(definition)
    return problem


def _find_recursion_within(definition: type[Definition]) -> str | None:
    try:
        with dry_run():
            definition.build_with()
    except InvalidWorkflow as error:
        return next((one.problem for one in error.mistakes if one.code is DefinitionErrorCode.CONTAINS_ITSELF), None)
    except Exception:  # noqa: BLE001  # user code; other errors are reported when it is built itself
        return None
    return None
