"""What a row may name: the tasks and dataclasses that this process has registered. A lookup never imports a module.

Tasks register themselves when they are made. With a task, or what builds a workflow, go the dataclasses of its module
(defined or imported there) and those in its type hints; ``register_task()`` and ``register_type()`` add the rest.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar, get_args, get_type_hints

from django.apps import apps

from .compat import FrameworkTask
from .exceptions import NotRegistered

logger = logging.getLogger("horsies_django")

K = TypeVar("K", bound=type)


class Registry:
    """Tasks and dataclasses by the name that rows have. Safe to use from several threads.

    ``late`` are the names that were registered after Django had started: a worker of the same settings need not import
    the module that registers them.
    """

    def __init__(self) -> None:
        self.tasks: dict[str, FrameworkTask[..., Any]] = {}
        self.late: set[str] = set()
        self._types: dict[str, type] = {}
        self._unread: list[tuple[Callable[..., Any], bool]] = []  # functions whose hints have not been looked at
        self._warned: set[str] = set()
        self._lock = threading.RLock()

    def add_task(self, task: FrameworkTask[..., Any], name: str | None = None) -> None:
        """Register a task under ``name``, by default its dotted path. A copy with other options changes nothing."""
        name = name or task.module_path
        known = self.tasks.get(name)
        if known is not None and known.func is task.func:
            return
        if getattr(loaded(name), "func", None) is task.func:
            return  # it stands for a task of another backend, which find_task() finds
        with self._lock:
            self.note(name, is_new=known is None)
            self.tasks[name] = task
            self.read_hints_of(task.func)

    def find_task(self, name: str) -> FrameworkTask[..., Any]:
        """Return the task of that name. Raises :class:`NotRegistered` if there is none."""
        if (task := self.tasks.get(name)) is not None:
            return task
        found = loaded(name)  # a task of another backend, which was made before it was sent to one of ours
        if isinstance(found, FrameworkTask):
            return found
        raise NotRegistered(
            f"{name!r} is not a registered task; registered are those of each app's tasks.py and workflows.py, of "
            "OPTIONS['modules'], and what these import."
        )

    def has_task(self, name: str) -> bool:
        """Whether there is a task of that name."""
        try:
            self.find_task(name)
        except NotRegistered:
            return False
        return True

    def note(self, name: str, *, is_new: bool = True) -> None:
        """Note when a name was registered. One that a module registers anew, loaded again, is no later than it was."""
        if not apps.ready:
            self.late.discard(name)
        elif is_new:
            self.late.add(name)

    def warn_if_late(self, name: str) -> None:
        """Log, once for each name, that a worker may not know a task that is being sent."""
        if name in self.late and name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "task %s was registered after Django had started: workers may not know it. "
                "Add %r to OPTIONS['modules'].",
                name,
                name.rpartition(".")[0],
            )

    def read_hints_of(self, function: Callable[..., Any]) -> None:
        """Register the dataclasses in the type hints of a function, when a type is first looked for."""
        self._unread.append((function, apps.ready))

    def add_type(self, kind: type, name: str | None = None) -> None:
        """Register a dataclass under ``name``, by default its dotted path."""
        with self._lock:
            name = name or path_of(kind)
            self.note(name, is_new=name not in self._types)
            self._types[name] = kind

    def has_type(self, kind: type) -> bool:
        """Whether a dataclass is registered under its dotted path."""
        return self._types.get(path_of(kind)) is kind or self.types.get(path_of(kind)) is kind

    def find_type(self, name: object) -> type:
        """Return the dataclass of that name. Raises :class:`NotRegistered` if there is none."""
        found = self.types.get(name) if isinstance(name, str) else None
        if found is None:
            raise NotRegistered(
                f"{name!r} is not a registered dataclass; registered are those in the modules and type hints of tasks "
                "and workflows, and those given to register_type()."
            )
        return found

    @property
    def types(self) -> Mapping[str, type]:
        """The dataclasses by name, those in the hints of all registered functions included."""
        if self._unread:
            with self._lock:
                unread, self._unread = self._unread, []
                seen: dict[int, Any] = {}
                for function, is_late in dict(unread).items():
                    for kind in _dataclasses_of(function, seen):
                        self._take_type(kind, is_late=is_late)
        return self._types

    def _take_type(self, kind: type, *, is_late: bool) -> None:
        name = path_of(kind)
        if "<locals>" not in name and self._types.get(name) is not kind:
            self._types[name] = kind
            if is_late:
                self.late.add(name)


registry: Final = Registry()


def register_type(kind: K, /, *, name: str | None = None) -> K:
    """Let values of a dataclass be stored by the rich serializer, and return the class; a decorator, too.

    For a dataclass that is in no module and in no type hint of a task or workflow. ``name`` is another dotted path
    under which stored values have it, for a class that has moved. Raises TypeError for what is not a dataclass that a
    module defines.
    """
    if not _is_dataclass(kind) or "<locals>" in kind.__qualname__:
        raise TypeError(f"register_type() got {kind!r}; allowed: a dataclass that is not defined inside a function.")
    registry.add_type(kind)
    if name is not None:
        registry.add_type(kind, name)
    return kind


def path_of(kind: type) -> str:
    """Return the dotted path of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def loaded(path: str) -> Any:
    """Return what a module that has been imported has at this dotted path; None if there is nothing."""
    module, _, name = path.rpartition(".")
    return getattr(sys.modules.get(module), "__dict__", {}).get(name)


def _dataclasses_of(function: Callable[..., Any], seen: dict[int, Any]) -> Iterator[type]:
    """Yield every dataclass of a function's module and of its hints, and of the hints of their fields.

    What is in ``seen``, by id, is left out; what is found is added.
    """
    waiting = list(_hints_of(function))
    module = sys.modules.get(function.__module__)
    if id(module) not in seen:
        seen[id(module)] = module
        waiting += [kind for kind in list(getattr(module, "__dict__", {}).values()) if _is_dataclass(kind)]
    while waiting:
        hint = waiting.pop()
        if id(hint) in seen:
            continue
        seen[id(hint)] = hint  # kept, lest another gets its id
        waiting += get_args(hint)
        kind = getattr(hint, "__origin__", hint)  # Page[int] is a Page
        waiting += [value] if (value := getattr(hint, "__value__", None)) is not None else []  # type X = …
        if _is_dataclass(kind):
            yield kind
            waiting += _hints_of(kind)


def _is_dataclass(kind: object) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _hints_of(thing: Any) -> Iterator[Any]:
    """Yield each hint that can be resolved: one that only a type checker can must not hide the others."""
    try:
        yield from get_type_hints(thing).values()
    except Exception:  # noqa: BLE001  # a hint is an expression of the project's, and may raise anything
        for name in getattr(thing, "__annotations__", ()):
            yield from _hint_of(thing, name)


def _hint_of(thing: Any, name: str) -> Iterator[Any]:
    stored = thing.__annotations__[name]
    holder = type("_Holder", (), {"__annotations__": {name: stored}, "__module__": thing.__module__})
    try:
        yield from get_type_hints(holder).values()
    except Exception as error:  # noqa: BLE001  # as above
        logger.debug("the hint %s of %r can't be resolved: %r", name, thing, error)
