"""Validate the names of tasks and their functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import Any, Final, ParamSpec, TypeVar, cast

from .compat import FrameworkTask, InvalidTask

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
