"""The backends that the helpers for tests work on."""

from __future__ import annotations

from ..core.backends import ConfiguredBackend
from ..core.compat import task_backends


def all_backends() -> list[ConfiguredBackend]:
    """Return every HorsiesBackend of ``TASKS``, in the order of the settings."""
    backends = (task_backends[alias] for alias in task_backends)
    return [backend for backend in backends if isinstance(backend, ConfiguredBackend)]
