"""A runner: one pump, its executors and its listener."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from django.db import connections

from ..models.claims import Runner
from .announcing import own_logging
from .connection import in_memory, own_connection
from .executors import InlineExecutor, LoopExecutor, ThreadExecutor
from .inbox import Inbox
from .lanes import Lane
from .listener import Listener
from .plan import HOSTNAME, Plan
from .pump import Pump

logger = logging.getLogger("horsies_django.worker")


def run(plan: Plan, worker_id: str, inbox: Inbox) -> bool:
    """Work by ``plan`` in this thread until done or told to stop; return whether another runner should go on."""
    runner = Runner(worker_id, HOSTNAME, os.getpid())
    with own_logging(), own_connection(plan.database, worker_id):
        inline = in_memory(plan.database) or connections[plan.database].in_atomic_block
        lanes = _inline_lanes(plan, inbox) if inline else _lanes(plan, inbox)
        listener = Listener(plan, inbox)
        if not inline:
            listener.start()
        pump = Pump(plan, runner, inbox, lanes, lambda: listener.alive)
        logger.info(
            "worker ready id=%s pid=%d queues=%s threads=%d async_slots=%d",
            worker_id,
            runner.pid,
            ",".join(plan.queues) or "all",
            plan.threads,
            plan.async_slots,
        )
        try:
            is_spent = pump.run()
        finally:
            listener.stop()
            for lane in lanes:
                lane.executor.close()
    logger.info("worker stopped id=%s", worker_id)
    return is_spent


def _lanes(plan: Plan, inbox: Inbox) -> Sequence[Lane]:
    return [
        Lane(False, plan.threads, plan.prefetch, ThreadExecutor(plan.threads, plan.database, inbox.put)),
        Lane(True, plan.async_slots, plan.prefetch, LoopExecutor(plan.database, inbox.put)),
    ]


def _inline_lanes(plan: Plan, inbox: Inbox) -> Sequence[Lane]:
    """Lanes for a database, or a transaction, that no other thread can see into."""
    return [Lane(is_async, 1, 0, InlineExecutor(plan.database, inbox.put)) for is_async in (False, True)]
