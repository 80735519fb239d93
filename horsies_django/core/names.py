"""Names of tasks: what they may be, and which functions may have them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import Any, Final, ParamSpec, TypeVar

from .compat import FrameworkTask, InvalidTask

P = ParamSpec("P")
T = TypeVar("T")

#: Characters of a name that a row holds.
NAME_LENGTH: Final = 255

#: What the names of the library's own tasks begin with.
RESERVED: Final = "horsies_django."


def checked_name(option: str, name: object) -> str:
    """Return a task's name. Raises ValueError, naming the option, for what no row should hold as a name."""
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
        f"with no space at either end; what begins with {RESERVED!r} is the library's own."
    )


def checked_aliases(aliases: object) -> tuple[str, ...]:
    """Return the names that a task had before. Raises ValueError as :func:`checked_name` does."""
    if isinstance(aliases, str | bytes | Mapping) or not isinstance(aliases, Collection):
        raise ValueError(f"aliases is {aliases!r}; allowed: a list of names, such as ['shop.tasks.send_mail'].")
    return tuple(checked_name(f"aliases: an entry of {aliases!r}", alias) for alias in aliases)


def name_of(task: FrameworkTask[..., Any]) -> str:
    """Return the name that rows of a task have; a task of another backend has the dotted path of its function."""
    return str(getattr(task, "task_name", None) or task.module_path)


def is_module_level(function: Callable[..., Any]) -> bool:
    """Whether a function stands at the top of its module, so that its dotted path names it alone."""
    return function.__qualname__.isidentifier()


def source_location(function: Callable[..., Any]) -> str:
    """Return where a function is: its dotted path, its file and its line."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{function.__module__}.{function.__qualname__}{where}"


def check_task_function(function: Callable[..., Any]) -> None:
    """Raise InvalidTask for a task, and for a function whose body a call does not run."""
    if isinstance(function, FrameworkTask):
        raise InvalidTask(
            f"{source_location(function.func)} is already a task; allowed: one @task with all options, or "
            "with_options()."
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidTask(
            f"{source_location(function)} is a generator, whose body a call does not run; allowed: def or async def, "
            "without yield. To return many values, return a list."
        )


def at_module_level(function: Callable[P, T]) -> Callable[P, T]:
    """Return a copy of a closure that the framework takes for a module's function; any other function as it is."""
    if not isinstance(function, FunctionType) or "<locals>" not in function.__qualname__:
        return function
    made = FunctionType(function.__code__, function.__globals__, function.__name__, closure=function.__closure__)
    functools.update_wrapper(made, function)
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    made.__qualname__ = function.__qualname__.replace("<locals>.", "")
    return made
