"""Look up the backends of ``TASKS`` that store tasks in a database, and their OPTIONS.

Collects the problems of tasks with their queues while Django starts, for a system check that reports all of them.
"""

from __future__ import annotations

import difflib
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.utils.functional import cached_property

from .compat import BaseTaskBackend, FrameworkTask, InvalidTask, task_backends
from .options import Options, Problem
from .read_settings import Parsed, parse


class ConfiguredBackend(BaseTaskBackend):
    """The part of :class:`~horsies_django.backend.HorsiesBackend` that reads its settings."""

    @cached_property
    def parsed(self) -> Parsed:
        """The parsed OPTIONS and their problems."""
        return parse(self.alias, self.options, set(self.queues))

    @cached_property
    def config(self) -> Options:
        """The OPTIONS. Raises ImproperlyConfigured, naming every mistake."""
        if self.parsed.problems:
            raise ImproperlyConfigured("\n".join(map(str, self.parsed.problems)))
        return self.parsed.options


def all_backends() -> list[ConfiguredBackend]:
    """Return every HorsiesBackend, in the order of ``TASKS``."""
    backends = (task_backends[alias] for alias in task_backends)
    return [backend for backend in backends if isinstance(backend, ConfiguredBackend)]


def backends_on(database: str) -> dict[str, ConfiguredBackend]:
    """Return the backends of ``database``, or of this replica of it, by alias.

    Raises ImproperlyConfigured for bad OPTIONS.
    """
    return {backend.alias: backend for backend in all_backends() if is_on(database, backend.config)}


def is_on(database: str, options: Options) -> bool:
    """Whether a backend with these options is on ``database``, or has it as its replica."""
    return database in (options.database, options.read_database)


def listen_database_of(database: str) -> str:
    """Return the alias over which LISTEN works for the queue in ``database``: its own unless a backend names one."""
    named = (backend.config.listen_database for backend in backends_on(database).values())
    return next(filter(None, named), database)


def config_of(alias: object) -> Options:
    """Return the options of a backend. Raises InvalidTask for an alias of another kind of backend."""
    if not isinstance(alias, str) or alias not in task_backends.settings:
        aliases = " or ".join(map(repr, task_backends.settings))
        raise InvalidTask(f"backend is {alias!r}; allowed: {aliases}.")
    backend = task_backends[alias]
    if not isinstance(backend, ConfiguredBackend):
        raise InvalidTask(f"TASKS[{alias!r}] is {type(backend).__name__}; allowed: a HorsiesBackend.")
    return backend.config


def reads_typed(alias: object, is_typed: bool) -> bool:
    """Whether the values of a row carry type tags: its column says so, and its backend's serializer is "rich"."""
    if not is_typed:
        return False
    try:
        return config_of(alias).serializer == "rich"
    except (InvalidTask, ImproperlyConfigured):
        return False


def horsies_backend(alias: str) -> ConfiguredBackend:
    """Return the backend of an alias. Raises ValueError if there is none or it is of another kind."""
    backend = task_backends[alias] if alias in task_backends.settings else None
    if not isinstance(backend, ConfiguredBackend):
        aliases = ", ".join(repr(backend.alias) for backend in all_backends()) or "none"
        raise ValueError(f"There is no HorsiesBackend at TASKS[{alias!r}]; there is {aliases}.")
    return backend


class Loading:
    """Whether Django is starting, and the tasks whose backend lacks their queue.

    During the start such a task raises nothing, so that a system check can report all of them, not only the first.
    Sending one still raises InvalidTask.
    """

    def __init__(self) -> None:
        self.is_active = False
        self.problems: list[Problem] = []

    def note_queue(self, task: FrameworkTask[..., Any], queues: set[str]) -> None:
        """Record that a task's queue is not in ``queues``. Does nothing if QUEUES is one text: a check reports that."""
        if isinstance(task_backends.settings[task.backend].get("QUEUES"), str):
            return
        name, names = task.queue_name, sorted(queues)
        near = difflib.get_close_matches(str(name), names, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "Add the name to QUEUES, or give the task another queue."
        allowed = f"the QUEUES of TASKS[{task.backend!r}], {', '.join(names)}"
        problem = Problem(f"queue_name of {task.module_path}", name, allowed, hint)
        if problem not in self.problems:
            self.problems.append(problem)


loading: Final = Loading()
