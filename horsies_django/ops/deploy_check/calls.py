"""Judge the names and arguments of stored calls by what is registered in this process. Calls nothing."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Generic, TypeVar

from ...core.backends import reads_typed
from ...core.compat import FrameworkTask
from ...core.exceptions import NotRegistered
from ...core.registry import registry
from ...core.serialization import decode_problems, has_tags
from ...enqueue.call_builder import Parameters, parameters_of
from ...enqueue.task import HorsiesTask
from ...workflows.conditions import condition_at
from ...workflows.definition_registry import definition_at

T = TypeVar("T")

#: Rows of one name whose contents are examined: the first and the last half of those that are read.
SAMPLE: Final = 100

#: Rows whose contents are in memory at once. Each may have megabytes.
CHUNK: Final = 20


class Sample(Generic[T]):
    """The first and the last of the rows that are added, and their number."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[T] = []
        self._last: deque[T] = deque(maxlen=SAMPLE // 2)

    def add(self, row: T) -> None:
        """Add a row."""
        self.count += 1
        if len(self._first) < SAMPLE // 2:
            self._first.append(row)
        else:
            self._last.append(row)

    def chunks(self) -> Iterator[Sequence[T]]:
        """Yield the rows in chunks."""
        rows = [*self._first, *self._last]
        for place in range(0, len(rows), CHUNK):
            yield rows[place : place + CHUNK]

    def __len__(self) -> int:
        return len(self._first) + len(self._last)


def find_task(name: str) -> FrameworkTask[..., Any] | None:
    """Return the task of that name, or None."""
    return _found(registry.find_task, name)


def name_problem(name: str) -> str | None:
    """Return why no worker could run a task of that name; None if one could."""
    return None if find_task(name) is not None else "no task of this name is registered"


def condition_problem(path: str) -> str | None:
    """Return why no worker could evaluate a condition; None if one could."""
    return None if _found(condition_at, path) is not None else "no condition of this name is registered"


def definition_problem(key: str) -> str | None:
    """Return why no worker could build a workflow; None if one could."""
    try:
        definition_at(key)
    except NotRegistered as error:
        return str(error).partition(";")[0]
    return None


def definition_parameters(key: str) -> Parameters:
    """Return the parameters of the builder of a definition. Raises NotRegistered."""
    return parameters_of(definition_at(key).build_with, False)


def task_parameters(task: FrameworkTask[..., Any]) -> Parameters:
    """Return the parameters of a task's function."""
    return parameters_of(task.func, task.takes_context)


def gathers(task: FrameworkTask[..., Any]) -> bool:
    """Whether the calls of a task are gathered."""
    return isinstance(task, HorsiesTask) and task.gather is not None


def signature_problem(parameters: Parameters, args: Sequence[Any], names: Collection[str]) -> str | None:
    """Return why a function can't be called with these arguments; None if it can."""
    context = (None,) if parameters.takes_context else ()
    try:
        parameters.signature.bind(*context, *args, **dict.fromkeys(names))
    except TypeError as error:
        return str(error)
    return None


def read_json(text: str | None, kind: type[T]) -> T:
    """Parse a stored column. Raises ValueError if it can't be parsed, or holds another type."""
    try:
        value = json.loads(text or "null")
    except (ValueError, RecursionError):
        raise ValueError("the stored arguments can't be read") from None
    if not isinstance(value, kind):
        raise ValueError(f"a {type(value).__name__} is stored in the place of a {kind.__name__}")
    return value


def value_problems(values: Sequence[Any] | Mapping[str, Any], backend: str, *, is_typed: bool) -> Iterator[str]:
    """Yield why stored values can't be read as what they were; the names of arguments are never tags."""
    each = values.values() if isinstance(values, Mapping) else values
    try:
        if reads_typed(backend, is_typed):
            yield from dict.fromkeys(chain.from_iterable(map(decode_problems, each)))
        elif is_typed and any(map(has_tags, each)):
            yield f"it has rich values, and TASKS has no {backend!r} whose serializer is 'rich'"
    except RecursionError:
        yield "the stored arguments are nested too deeply"


def _found(find: Callable[[str], T], name: str) -> T | None:
    try:
        return find(name)
    except NotRegistered:
        return None
