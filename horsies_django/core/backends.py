"""Look up the backends of ``TASKS`` that store tasks in a database, and their OPTIONS."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured
from django.utils.functional import cached_property

from .compat import BaseTaskBackend, InvalidTask, task_backends
from .options import Options, Parsed, parse


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
    """Return the backends of ``database`` by alias. Raises ImproperlyConfigured for bad OPTIONS."""
    return {backend.alias: backend for backend in all_backends() if backend.config.database == database}


def config_of(alias: object) -> Options:
    """Return the options of a backend. Raises InvalidTask for an alias of another kind of backend."""
    if not isinstance(alias, str) or alias not in task_backends.settings:
        known = " or ".join(map(repr, task_backends.settings))
        raise InvalidTask(f"backend is {alias!r}; allowed: {known}.")
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
    backends = {backend.alias: backend for backend in all_backends()}
    if alias not in backends:
        known = ", ".join(map(repr, backends)) or "none"
        raise ValueError(f"There is no HorsiesBackend at TASKS[{alias!r}]; there is {known}.")
    return backends[alias]
