"""Publishes results that are stored: to the log, to callers and workers that wait, to signals and to the metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from django.db import Error

from ..core import recent_exceptions
from ..db.errors import lacks_privilege
from ..db.notifications import notify_slot_freed_after_commit
from .execution_result import ExecutionResult
from .listener import Listener
from .signal_dispatcher import SignalDispatcher
from .slot_pool import SlotPool
from .started_registry import Activity, StartedRegistry
from .store import WorkerStore

logger = logging.getLogger("horsies_django.worker")


class ResultPublisher:
    """Does for each batch of results what follows its commit. Nothing here can undo a result.

    ``on_privilege_lost`` handles a privilege that the role has lost. Without a ``started_registry`` there is no
    supervisor, and the caller of a task may be in this process.
    """

    def __init__(
        self,
        database: str,
        store: WorkerStore,
        pools: Sequence[SlotPool],
        listener: Listener,
        signals: SignalDispatcher,
        started_registry: StartedRegistry | None,
        on_privilege_lost: Callable[[Error], None],
    ) -> None:
        self._database = database
        self._store = store
        self._pools = pools
        self._listener = listener
        self._signals = signals
        self._started_registry = started_registry
        self._on_privilege_lost = on_privilege_lost
        self._activity = Activity()  # as the supervisor's metrics have it

    def publish(self, ended: Sequence[ExecutionResult]) -> None:
        """Publish these results, and delete tasks that are not retained. It may be empty: slots are counted anyway."""
        self._delete_unretained(ended)
        self._report(ended)
        self._record_activity(ended)

    def _delete_unretained(self, ended: Sequence[ExecutionResult]) -> None:
        """Delete tasks with a retention of zero. A failure leaves them to the reaper."""
        try:
            self._store.delete_unretained(ended)
        except Exception as error:
            if lacks_privilege(error):
                self._on_privilege_lost(error)
            else:
                logger.exception("tasks without retention left to the reaper")

    def _report(self, ended: Sequence[ExecutionResult]) -> None:
        """Log results, send their signals, and notify workers and callers that wait for them."""
        for result in ended:
            if self._started_registry is not None:
                self._started_registry.release(result.execution.slot)
            result.log()
        for queue_name in self._store.selector.notify_on_release({result.claim.queue_name for result in ended}):
            notify_slot_freed_after_commit(self._database, queue_name)
        self._listener.publish_completed(result.execution.task_id for result in ended if result.is_final)
        self._signals.enqueue_results(ended)
        raised = {result: result.exception for result in ended if result.exception is not None}
        if self._started_registry is not None:
            self._signals.run_after_sent(partial(recent_exceptions.drop_tracebacks, list(raised.values())))
            return
        for result, exception in raised.items():
            if result.is_final:
                recent_exceptions.keep(result.execution.task_id, exception)  # the handle may be in this process

    def _record_activity(self, ended: Sequence[ExecutionResult]) -> None:
        """Record for the supervisor's metrics which attempts have ended, and how many slots are taken."""
        if self._started_registry is None:
            return
        completed, failed, retried, *_ = self._activity
        for result in ended:
            completion = result.completion
            if completion.error is None:
                completed += completion.delay is None
            elif completion.delay is None:
                failed += 1
            else:
                retried += 1
        taken = {pool.is_async: min(len(pool.running), pool.slots) for pool in self._pools}
        activity = Activity(completed, failed, retried, taken.get(False, 0), taken.get(True, 0))
        if activity != self._activity:
            self._activity = activity
            self._started_registry.record_activity(activity)
