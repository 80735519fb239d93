"""Measures bodies that read a row and save it with Django's ORM, at two settings.

The rate runs from the start of the first body until the peer's own store has all tasks as finished.
"""

from __future__ import annotations

import time
from typing import Final

from ..drivers import PeerError
from ..harness import Harness
from ..options import Options

#: Tasks of each drain.
TASKS: Final = 1_000

#: Async slots of each of our processes: as many as threads, because each coroutine has a connection.
_ASYNC_SLOTS: Final = 8

#: The connections of DATABASES by default, and as Django's documentation recommends to keep them.
_SETTINGS: Final = {"defaults": "default", "recommended": "kept"}


def orm(harness: Harness, options: Options) -> dict[str, float]:
    """Drain functions and, if the peer has them, coroutines, at each of the settings."""
    figures: dict[str, float] = {}
    for kind, body in {"functions": "save", "coroutines": "asave"}.items():
        if kind == "coroutines" and not harness.peer.has_coroutines:
            continue
        for settings, connections in _SETTINGS.items():
            slots = harness.peer.default_slots if settings == "defaults" else None
            commands = "worker_commands"
            if kind == "coroutines" and harness.peer.module == "ours":
                commands, slots = "coroutine_worker_commands", _ASYNC_SLOTS
            first = TASKS * len(figures)
            harness.enqueue(TASKS, body, first)
            with harness.workers(options.processes, slots, commands, BENCHMARK_CONNECTIONS=connections) as (group, _):
                harness.wait_until_started(group, first, TASKS)
                harness.wait_until_finished(group)
                ended = time.monotonic()
            figures[f"{kind}, {settings}, tasks/s"] = TASKS / (ended - harness.probe.start_times(first, TASKS)[0])
            # A body that fails, for want of a connection for example, takes no time.
            if (saved := harness.call("count_saves")) != TASKS * len(figures):
                raise PeerError(f"{saved} saves after {TASKS * len(figures)} tasks")
    return figures
