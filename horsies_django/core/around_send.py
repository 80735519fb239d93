"""The context managers that middleware enters around a send."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from .dry_run import is_dry_run
from .middleware import ContextMiddleware, TaskSend
from .middleware_loader import load_factory
from .options import Options

Wrapper = Callable[[TaskSend], AbstractContextManager[Any]]


def around_send(options: Options, send: TaskSend) -> AbstractContextManager[Any]:
    """Return the context managers of all middleware for one send, the outermost first. A dry run has none.

    Raises ImproperlyConfigured for an invalid middleware, and whatever a middleware raises.
    """
    wrappers = _wrappers(options.middleware)
    return _within(wrappers, send) if wrappers and not is_dry_run() else nullcontext()


@contextmanager
def _within(wrappers: tuple[Wrapper, ...], send: TaskSend) -> Iterator[None]:
    with ExitStack() as stack:
        for wrapper in wrappers:
            stack.enter_context(wrapper(send))
        yield


@functools.cache
def _wrappers(paths: tuple[str, ...]) -> tuple[Wrapper, ...]:
    found = (getattr(load_factory(path), "around_send", None) for path in paths)
    return tuple(wrapper for wrapper in found if wrapper not in (None, ContextMiddleware.around_send))
