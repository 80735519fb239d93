"""The registered tasks and dataclasses, and the names by which rows refer to them. A lookup imports no module.

Tasks register themselves when they are made. Registering a task, a workflow definition or a builder also registers the
dataclasses in its module (defined or imported there) and in its type hints. ``register_task()`` and ``register_type()``
add the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Annotated, Any, Final, NamedTuple, ParamSpec, TypeVar, cast, get_args, get_origin

from django.apps import apps

from .annotations import hints_of
from .compat import FrameworkTask, InvalidTask
from .exceptions import NotRegistered

logger = logging.getLogger("horsies_django")

K = TypeVar("K", bound=type)

#: The start of the names of tasks in a script, such as ``python -m shop.main``, and what to do about them.
SCRIPT: Final = "__main__."
MOVE: Final = "Move it from the script into a module that workers import, such as the tasks.py of an app."


class NameClaim(NamedTuple):
    """A task that has a name. ``is_path`` is set for the dotted path of a task with another name."""

    task: FrameworkTask[..., Any]
    is_path: bool
    load: object  # one for each import of the function's module; None for interactive code


class Registry:
    """Tasks and dataclasses by the names in rows. Thread-safe.

    ``late`` are the names that were registered after Django had started: a worker of the same settings need not import
    the module that registers them.
    """

    def __init__(self) -> None:
        self.tasks: dict[str, FrameworkTask[..., Any]] = {}
        self.late: set[str] = set()
        self._claims: dict[str, NameClaim] = {}
        self._types: dict[str, type] = {}
        self._unread_hints: list[tuple[Callable[..., Any], bool]] = []  # functions whose hints have not been read
        self._warned: set[str] = set()
        self._lock = threading.RLock()

    def add_task(self, task: FrameworkTask[..., Any], aliases: Iterable[str] = ()) -> None:
        """Register a task under its name, its aliases and the dotted path of its function. Repeats change nothing.

        A name or an alias takes precedence over the dotted path of a task with another name. Raises ValueError, naming
        both places, if another task has the name or an alias.
        """
        name, load = name_of(task), _load_of(task.func)
        claims = {alias: NameClaim(task, False, load) for alias in aliases}
        # A stand-in for a task of another backend need not be registered: find_task() finds the original.
        if name in self.tasks or getattr(imported_attribute(name), "func", None) is not task.func:
            claims[name] = NameClaim(task, False, load)
            if is_module_level(task.func):
                claims.setdefault(task.module_path, NameClaim(task, True, load))
        with self._lock:
            if new := {name: claim for name, claim in claims.items() if self._is_new(name, claim)}:
                for name, claim in new.items():
                    self.record_registration(name, is_new=name not in self.tasks)
                    self._claims[name], self.tasks[name] = claim, task
                self.read_hints_of(task.func)

    def _is_new(self, name: str, claim: NameClaim) -> bool:
        """Return whether a name goes to a claim. Raises ValueError if another task has the name."""
        held = self._claims.get(name) if name in self.tasks else None
        if held is None:
            return True
        if held.is_path != claim.is_path:
            return held.is_path
        if held.task.func is claim.task.func:
            return False
        if not claim.is_path:
            _check_replaced(name, held, claim)
        return True

    def names_of(self, name: str) -> set[str]:
        """Return every name of the task of that name: rows from before a rename have an old one."""
        if (task := self.tasks.get(name)) is None:
            return {name}
        own = name_of(task)
        return {name, *(other for other, task in list(self.tasks.items()) if name_of(task) == own)}

    def find_task(self, name: str) -> FrameworkTask[..., Any]:
        """Return the task of that name. Raises :class:`NotRegistered` if there is none."""
        if (task := self.tasks.get(name)) is not None:
            return task
        attribute = imported_attribute(name)  # a task of another backend that is sent to one of ours
        if isinstance(attribute, FrameworkTask):
            return attribute
        raise NotRegistered(
            f"{name!r} is not a registered task; registered are those of each app's tasks.py and workflows.py, of "
            f"OPTIONS['modules'], and what these import.{' ' + MOVE if name.startswith(SCRIPT) else ''}"
        )

    def has_task(self, name: str) -> bool:
        """Whether there is a task of that name."""
        try:
            self.find_task(name)
        except NotRegistered:
            return False
        return True

    def record_registration(self, name: str, *, is_new: bool = True) -> None:
        """Record whether a name was registered late. A module that is loaded again does not make it late."""
        if not apps.ready and not name.startswith(SCRIPT):
            self.late.discard(name)
        elif is_new:
            self.late.add(name)

    def warn_if_late(self, name: str) -> None:
        """Log, once for each name, that workers may not know a task that is sent."""
        if name in self.late and name in self.tasks and name not in self._warned:
            self._warned.add(name)
            module = self.tasks[name].func.__module__
            hint = MOVE if name.startswith(SCRIPT) else f"Add {module!r} to OPTIONS['modules']."
            logger.warning("task registered after Django had started name=%s: workers may not know it. %s", name, hint)

    def read_hints_of(self, function: Callable[..., Any]) -> None:
        """Register the dataclasses in a function's type hints, at the first lookup of a type."""
        self._unread_hints.append((function, apps.ready))

    def add_type(self, kind: type, name: str | None = None) -> None:
        """Register a dataclass under ``name``, by default its dotted path."""
        with self._lock:
            name = name or path_of(kind)
            self.record_registration(name, is_new=name not in self._types)
            self._types[name] = kind

    def has_type(self, kind: type) -> bool:
        """Whether a dataclass is registered under its dotted path."""
        return self._types.get(path_of(kind)) is kind or self.types.get(path_of(kind)) is kind

    def find_type(self, name: object) -> type:
        """Return the dataclass of that name. Raises :class:`NotRegistered` if there is none."""
        kind = self.types.get(name) if isinstance(name, str) else None
        if kind is None:
            raise NotRegistered(
                f"{name!r} is not a registered dataclass; registered are those in the modules and type hints of tasks "
                "and workflows, and those given to register_type()."
            )
        return kind

    @property
    def types(self) -> Mapping[str, type]:
        """The dataclasses by name, including those in the hints of all registered functions."""
        if self._unread_hints:
            with self._lock:
                unread, self._unread_hints = self._unread_hints, []
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
    """Register a dataclass for the rich serializer, and return it. Works as a decorator.

    Needed only for a dataclass that no module with a task or workflow, and none of their type hints, has. ``name`` is
    the dotted path in values that were stored before the class moved. Raises TypeError for anything but a dataclass at
    the top level of a module or class.
    """
    if not _is_dataclass(kind) or "<locals>" in kind.__qualname__:
        raise TypeError(f"register_type() got {kind!r}; allowed: a dataclass that is not defined inside a function.")
    registry.add_type(kind)
    if name is not None:
        registry.add_type(kind, name)
    return kind


def _load_of(function: Callable[..., Any]) -> object:
    """Return an object that each import of the function's module has anew; None for interactive code."""
    function = unwrapped(function)
    if function.__code__.co_filename.startswith("<"):  # a prompt, a doctest or a notebook
        return None
    return function.__globals__.get("__spec__") or function.__globals__.get("__file__")


def _check_replaced(name: str, held: NameClaim, claim: NameClaim) -> None:
    """Raise ValueError unless a claim's function is that of the former claim, loaded again."""
    old, new = (unwrapped(entry.task.func) for entry in (held, claim))
    before, now = old.__code__, new.__code__
    if (before.co_filename, before.co_firstlineno) == (now.co_filename, now.co_firstlineno):
        is_again = apps.ready or before is not now  # while Django starts, two closures of one function are two tasks
    elif is_again := old.__module__ == new.__module__ and (claim.load is None or claim.load is not held.load):
        logger.warning("task replaced name=%s by=%s", name, source_location(new))
    if not is_again:
        raise ValueError(
            f"{name!r} is the name of two tasks, {source_location(old)} and {source_location(new)}; "
            "allowed: a name of its own for each, by @task(name=…)."
        )


def path_of(kind: type) -> str:
    """Return the dotted path of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def imported_attribute(path: str) -> Any:
    """Return the object at a dotted path if its module has been imported; None if there is none."""
    module, _, name = path.rpartition(".")
    return getattr(sys.modules.get(module), "__dict__", {}).get(name)


def _dataclasses_of(function: Callable[..., Any], seen: dict[int, Any]) -> Iterator[type]:
    """Yield every dataclass in a function's module, in its hints, and in the hints of their fields.

    Skips hints in ``seen``, which maps ids to hints, and adds the others to it.
    """
    waiting = list(hints_of(function).values())
    module = sys.modules.get(function.__module__)
    if id(module) not in seen:
        seen[id(module)] = module
        waiting += [kind for kind in list(getattr(module, "__dict__", {}).values()) if _is_dataclass(kind)]
    while waiting:
        hint = waiting.pop()
        if id(hint) in seen:
            continue
        seen[id(hint)] = hint  # kept alive, so that its id is not reused
        waiting += [hint.__origin__] if get_origin(hint) is Annotated else get_args(hint)
        kind = getattr(hint, "__origin__", hint)  # Page[int] is a Page
        waiting += [value] if (value := getattr(hint, "__value__", None)) is not None else []  # type X = …
        if _is_dataclass(kind):
            yield kind
            waiting += hints_of(kind).values()


def _is_dataclass(kind: object) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


P = ParamSpec("P")
T = TypeVar("T")

#: The maximum length of a name, in characters.
NAME_LENGTH: Final = 255

#: The prefix of the library's own tasks.
RESERVED: Final = "horsies_django."


def checked_name(option: str, name: object) -> str:
    """Return a valid task name. Raises ValueError, naming the option, for an invalid one."""
    if (
        isinstance(name, str)
        and 0 < len(name) <= NAME_LENGTH
        and name.isprintable()
        and name == name.strip()
        and not name.startswith(RESERVED)
    ):
        return name
    raise ValueError(
        f"{option} is {name!r}; allowed: a text such as 'emails.send', of 1 to {NAME_LENGTH} printable characters, "
        f"with no space at either end; names that begin with {RESERVED!r} are reserved."
    )


def checked_aliases(aliases: object) -> tuple[str, ...]:
    """Return valid former names of a task. Raises ValueError as :func:`checked_name` does."""
    if isinstance(aliases, str | bytes | Mapping) or not isinstance(aliases, Collection):
        raise ValueError(f"aliases is {aliases!r}; allowed: a list of names, such as ['shop.tasks.send_mail'].")
    return tuple(checked_name(f"aliases: an entry of {aliases!r}", alias) for alias in aliases)


def name_of(task: FrameworkTask[..., Any]) -> str:
    """Return the name of a task in rows; for a task of another backend, the dotted path of its function."""
    return str(getattr(task, "task_name", None) or task.module_path)


def is_module_level(function: Callable[..., Any]) -> bool:
    """Whether a function is at the top level of its module, so that its dotted path is unique."""
    return function.__qualname__.isidentifier()


def unwrapped(function: Callable[..., Any]) -> FunctionType:
    """Return the function that the decorators of a function wrap."""

    def is_last(wrapper: Any) -> bool:
        return not isinstance(wrapper.__wrapped__, FunctionType)

    return cast("FunctionType", inspect.unwrap(function, stop=is_last))


def source_location(function: Callable[..., Any]) -> str:
    """Return the dotted path, the file and the line of a function."""
    code = getattr(unwrapped(function), "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{function.__module__}.{function.__qualname__}{where}"


def check_task_function(function: Callable[..., Any]) -> None:
    """Raise InvalidTask for anything but a function whose body a call runs."""
    if isinstance(function, FrameworkTask):
        raise InvalidTask(
            f"{source_location(function.func)} is already a task; allowed: one @task with all options, or "
            "with_options()."
        )
    if isinstance(function, str):
        raise InvalidTask(f"@task got the text {function!r}; allowed: options by name, @task(name={function!r}).")
    if not isinstance(function, FunctionType):
        raise InvalidTask(f"@task got {function!r}; allowed: a function. Wrap it in a def.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidTask(
            f"{source_location(function)} is a generator, whose body a call does not run; allowed: def or async def, "
            "without yield. To return many values, return a list."
        )


def at_module_level(function: Callable[P, T]) -> Callable[P, T]:
    """Return a copy of a closure that the framework accepts as a module-level function; other functions unchanged."""
    if not isinstance(function, FunctionType) or "<locals>" not in function.__qualname__:
        return function
    made = FunctionType(function.__code__, function.__globals__, function.__name__, closure=function.__closure__)
    functools.update_wrapper(made, function)
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    made.__qualname__ = function.__qualname__.replace("<locals>.", "")
    return made
