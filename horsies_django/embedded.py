"""``start()`` runs a worker in threads of a web process: for development, and for a small site on one server."""

from __future__ import annotations

from .core.compat import DEFAULT_TASK_BACKEND_ALIAS

__all__ = ["start"]


def start(threads: int = 2, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> None:
    """Run tasks in threads of this process until it ends; return at once. For the end of ``wsgi.py`` or ``asgi.py``.

    At most ``threads`` functions and as many coroutines run at the same time. A process that a server forks from this
    one soon has a worker of its own instead, and this one has none. A further call for the same backend does nothing.

    Raises ValueError for an unknown backend or number of threads, and ImproperlyConfigured for mistakes in OPTIONS, for
    options of the worker that need a process of its own, and for a database in memory.
    """
    from .worker.embedded import start_in_server  # here, because it imports models: wsgi.py loads them first

    start_in_server(threads, backend)
