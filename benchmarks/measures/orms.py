"""Measures bodies that read a row and save it with Django's ORM, at two settings.

The rate runs from the start of the first body until the peer's own store has all tasks as finished.
"""

from __future__ import annotations

import time
from typing import Final

from ..drivers import PeerError
from ..harness import Harness
from ..options import Options

#: The most tasks of a drain.
_MAX_TASKS: Final = 1_000

#: Async slots of each of our processes: as many as threads, because each coroutine has a connection.
_ASYNC_SLOTS: Final = 8

#: The connections of DATABASES by default, and as Django's documentation recommends to keep them.
_SETTINGS: Final = {"defaults": "default", "recommended": "kept"}


def max_tasks(options: Options) -> int:
    """Return the most tasks that the measure numbers."""
    return 4 * _count(options)


def orm(harness: Harness, options: Options) -> dict[str, float]:
    """Drain functions and, if the peer has them, coroutines, at each of the settings."""
    figures: dict[str, float] = {}
    count = _count(options)
    for kind, body in {"functions": "save", "coroutines": "asave"}.items():
        if kind == "coroutines" and not harness.peer.has_coroutines:
            continue
        for settings, connections in _SETTINGS.items():
            slots = harness.peer.default_slots if settings == "defaults" else None
            commands = "worker_commands"
            if kind == "coroutines" and harness.peer.module == "ours":
                commands, slots = "coroutine_worker_commands", _ASYNC_SLOTS
            first = count * len(figures)
            harness.enqueue(count, body, first)
            with harness.workers(options.processes, slots, commands, BENCHMARK_CONNECTIONS=connections) as (group, _):
                harness.wait_until_started(group, first, count)
                harness.wait_until_finished(group)
                ended = time.monotonic()
            figures[f"{kind}, {settings}, tasks/s"] = count / (ended - harness.probe.start_times(first, count)[0])
            # A body that fails, for want of a connection for example, takes no time.
            if (saved := harness.call("count_saves")) != count * len(figures):
                raise PeerError(f"{saved} saves after {count * len(figures)} tasks")
    return figures


def _count(options: Options) -> int:
    return min(_MAX_TASKS, options.tasks)
