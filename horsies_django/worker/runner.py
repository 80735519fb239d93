"""A runner: one pump, its executors and its listener."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from ..enqueue.django_result import own_logging
from ..models.claims import Runner
from .commands import Inbox
from .config import HOSTNAME, Plan
from .connection import is_callers_alone, own_connection
from .console import announce
from .executors import InlineExecutor, LoopExecutor, ThreadExecutor
from .exit_reason import Leaving
from .listener import Listener
from .producer import Pump
from .slots import Lane
from .start_ahead import Ahead
from .started_registry import Begun

logger = logging.getLogger("horsies_django.worker")


def run(
    plan: Plan,
    worker_id: str,
    inbox: Inbox,
    retire: Callable[[Leaving], bool] = lambda _: False,
    begun: Begun | None = None,
    *,
    verbosity: int = 0,
) -> Leaving:
    """Work by ``plan`` in this thread until done or told to stop; return why it ended.

    ``retire`` tells a supervisor that this runner takes no more work, and why, and returns whether there is one; in
    ``begun`` the supervisor sees which bodies have begun. That it is ready is logged and, unless ``verbosity`` is 0,
    comes to stderr however LOGGING is set.
    """
    runner = Runner(worker_id, HOSTNAME, os.getpid())
    with own_logging(), own_connection(plan.database, worker_id, is_busy=True):
        inline = is_callers_alone(plan.database)
        lanes = _inline_lanes(plan, inbox) if inline else _lanes(plan, inbox)
        listener = Listener(plan, worker_id, inbox)
        if not inline:
            listener.start()
        pump = Pump(plan, runner, inbox, lanes, listener, retire, begun)
        announce(
            "worker ready id=%s pid=%d queues=%s threads=%d async_slots=%d",
            worker_id,
            runner.pid,
            ",".join(plan.queues) or "all",
            plan.threads,
            plan.async_slots,
            verbosity=verbosity,
        )
        try:
            leaving = pump.run()
        finally:
            listener.stop()
            for lane in lanes:
                if not pump.leaves_bodies:  # else the end of the process is what its threads need
                    lane.executor.close()
    logger.info("worker stopped id=%s", worker_id)
    return leaving


def _lanes(plan: Plan, inbox: Inbox) -> Sequence[Lane]:
    return [
        Lane(False, plan.threads, plan.prefetch, ThreadExecutor(plan.threads, inbox.put), _ahead(plan)),
        Lane(True, plan.async_slots, plan.prefetch, LoopExecutor(inbox.put), Ahead(plan.async_slots, 0)),
    ]


def _ahead(plan: Plan) -> Ahead:
    """Who has asked for a number of tasks to be claimed ahead gets those, and no others."""
    return Ahead(plan.threads, 0 if plan.prefetch else plan.start_ahead)


def _inline_lanes(plan: Plan, inbox: Inbox) -> Sequence[Lane]:
    """Lanes for a database, or a transaction, that no other thread can see into."""
    return [Lane(is_async, 1, 0, InlineExecutor(inbox.put), Ahead(1, 0)) for is_async in (False, True)]
