"""A runner: one producer with its executors and its listener."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from ..db.connection import is_visible_only_here, own_connection, pool_size
from ..enqueue.django_result import own_logging
from .attempt_log import keeping_attempt_logs
from .body_connections import BodyConnections
from .config import WorkerConfig
from .console_logging import log_and_print
from .executor import InlineExecutor
from .inbox import Inbox
from .loop_executor import LoopExecutor
from .producer import Producer
from .runner_state import Report, RunnerState
from .slot_pool import SlotPool, StartAheadTuner
from .started_registry import ExitReason, StartedRegistry
from .thread_executor import ThreadExecutor

logger = logging.getLogger("horsies_django.worker")

#: An event loop gets through more short tasks than threads, which switch in between: it starts so many times as many
#: ahead, so that a claim is for hundreds.
COROUTINES_FACTOR: Final = 2


def run(
    config: WorkerConfig,
    worker_id: str,
    inbox: Inbox,
    report: Report = lambda _: False,
    started_registry: StartedRegistry | None = None,
    *,
    verbosity: int = 0,
) -> ExitReason:
    """Work in this thread until done or stopped; return why it ended.

    ``report`` tells the supervisor why this runner takes no more work, or a notice, and returns whether there is one.
    Through ``started_registry`` the supervisor sees which executions have started. Readiness is logged and, unless
    ``verbosity`` is 0, printed to stderr whatever LOGGING says.
    """
    keeping_logs = keeping_attempt_logs(config.options.attempt_log, worker_id)
    with own_logging(), keeping_logs, own_connection(config.database, worker_id, is_busy=True):
        inline = is_visible_only_here(config.database)
        pools = _inline_pools(config, inbox) if inline else _pools(config, inbox)
        state = RunnerState(config, worker_id, inbox, pools, report, started_registry)
        if not inline:
            state.listener.start()
        producer = Producer(state)
        log_and_print(
            "worker ready id=%s pid=%d queues=%s threads=%d async_slots=%d",
            worker_id,
            state.worker.pid,
            ",".join(config.queues) or "all",
            config.threads,
            config.async_slots,
            verbosity=verbosity,
        )
        try:
            exit_reason = producer.run()
        finally:
            state.listener.stop()
            for pool in pools:
                if not producer.leaves_executions:  # otherwise the end of the process stops its threads
                    pool.executor.close()
    logger.info("worker stopped id=%s", worker_id)
    return exit_reason


def _pools(config: WorkerConfig, inbox: Inbox) -> Sequence[SlotPool]:
    size = pool_size(config.database)
    if size is not None and size < config.threads:
        text = "pool smaller than threads, bodies wait for each other's connections database=%s max_size=%d threads=%d"
        logger.warning(text, config.database, size, config.threads)
    body_connections = BodyConnections(config.conn_max_age, resets_sessions=config.reset_sessions)
    return [
        SlotPool(
            False,
            config.threads,
            config.prefetch,
            ThreadExecutor(config.threads, inbox.put, body_connections),
            _tuner(config, config.threads),
        ),
        SlotPool(
            True,
            config.async_slots,
            config.prefetch,
            LoopExecutor(config.async_slots, inbox, body_connections),
            _tuner(config, config.async_slots, COROUTINES_FACTOR),
        ),
    ]


def _tuner(config: WorkerConfig, slots: int, factor: int = 1) -> StartAheadTuner:
    """Return the tuner of a pool: ``prefetch`` sets a fixed number of tasks to claim ahead instead."""
    return StartAheadTuner(slots, 0 if config.prefetch else factor * config.start_ahead)


def _inline_pools(config: WorkerConfig, inbox: Inbox) -> Sequence[SlotPool]:
    """Return pools for a database or a transaction that no other thread can see."""
    return [SlotPool(is_async, 1, 0, InlineExecutor(inbox.put), StartAheadTuner(1, 0)) for is_async in (False, True)]
