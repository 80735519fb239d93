"""Dispatches the signals of a worker. Without receivers they cost nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Final

from django.db import close_old_connections, connections, reset_queries
from django.db.models import Exists, OuterRef
from django.dispatch import Signal

from ..core.compat import task_finished, task_started
from ..core.results import OperationalCode
from ..core.signals import task_retrying
from ..core.status import AttemptOutcome, TaskStatus
from ..enqueue.django_result import result_of
from ..enqueue.send_signals import Job, failures, send_failure, send_finished, sender_of
from ..models import Task, TaskStep
from ..models.claims import ClaimedTask
from .execution import ExecutionResult
from .isolation import isolated

logger = logging.getLogger("horsies_django.worker")

#: The states that ``task_finished`` reports: a cancelled task may still return.
_FINISHED: Final = (TaskStatus.COMPLETED, TaskStatus.FAILED)


def has_started_receivers(claimed: ClaimedTask) -> bool:
    """Whether ``task_started`` has receivers for this task's backend."""
    return _has_receivers(task_started, claimed)


def has_retrying_receivers(claimed: ClaimedTask) -> bool:
    """Whether ``task_retrying`` has receivers for this task's backend."""
    return _has_receivers(task_retrying, claimed)


def has_finished_receivers(claimed: ClaimedTask) -> bool:
    """Whether ``task_finished`` has receivers for this task's backend."""
    return _has_receivers(task_finished, claimed)


def _has_receivers(signal: Signal, claimed: ClaimedTask) -> bool:
    return bool(signal.receivers) and signal.has_listeners(sender_of(claimed.backend))


def send_started(claimed: ClaimedTask, database: str) -> None:
    """Send ``task_started``, just before the function starts. An error of a receiver is logged and does not stop it."""
    if has_started_receivers(claimed):
        result = result_of(running_row(claimed, database))
        task_started.send_robust(sender=sender_of(claimed.backend), task_result=result)


def running_row(claimed: ClaimedTask, database: str, *, finds_records: bool = False) -> Task:
    """Return the row of a task that is about to start, with ``has_records`` if that is asked of one that ran before."""
    rows = Task.objects.using(database)
    if finds_records and claimed.claim > 1:
        rows = rows.annotate(has_records=Exists(TaskStep.objects.kept().filter(task=OuterRef("pk"))))
    return rows.get(pk=claimed.task_id)


class SignalDispatcher:
    """Sends the signals of stored results in a thread of its own, so that receivers don't hold up the producer.

    Without ``has_thread``, for a database that no other thread can see, :meth:`send` sends them in the calling thread.
    ``on_sent`` is called after each job. ``taken`` and ``sent`` count jobs; one thread writes each of them.
    """

    def __init__(self, database: str, *, has_thread: bool = True, on_sent: Callable[[], None] | None = None) -> None:
        self._database = database
        self._has_thread = has_thread
        self._on_sent = on_sent
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.taken = 0
        self.sent = 0

    def enqueue_results(self, results: Sequence[ExecutionResult]) -> None:
        """Enqueue the signals of those ``results`` that ended a task, or that failed before another attempt."""
        if finished := [result for result in results if result.is_final and has_finished_receivers(result.claimed)]:
            self.put(partial(self._send_finished, finished))
        # Instead of being retried, such a task has expired if its next attempt would be past ``good_until``.
        failed = [result for result in results if not result.is_final and result.completion.error is not None]
        if failed := [
            result
            for result in failed
            if has_retrying_receivers(result.claimed) or has_finished_receivers(result.claimed)
        ]:
            self.put(partial(self._send_failures, failed))

    def put(self, job: Job) -> None:
        """Enqueue a job that sends signals."""
        if self._thread is None and self._has_thread:
            self._thread = threading.Thread(target=self._loop, name="horsies-signals", daemon=True)
            self._thread.start()
        self.taken += 1
        self._queue.put(job)

    def run_after_sent(self, job: Job) -> None:
        """Run a job once the signals that are enqueued so far are sent: at once if there are none."""
        if self.sent == self.taken:
            job()
        else:
            self.put(job)

    def run_pending(self) -> None:
        """Run the waiting jobs in this thread, unless there is a thread for them."""
        while not self._has_thread and self.sent < self.taken:
            if (job := self._queue.get()) is not None:
                self._run(job)

    def close(self, timeout: float) -> None:
        """Run the waiting jobs, for at most ``timeout`` seconds."""
        self.run_pending()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout)

    def _loop(self) -> None:
        while (job := self._queue.get()) is not None:
            close_old_connections()
            self._run(job)
            reset_queries()
            close_old_connections()
        connections.close_all()

    def _run(self, job: Job) -> None:
        """Run one job. Whatever a receiver raises is logged, even SystemExit."""
        try:
            isolated(job)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not self._has_thread:
                raise  # it was meant for the caller's own thread
            logger.exception("signals not sent")
        finally:
            self.sent += 1
            if self._on_sent is not None:
                self._on_sent()

    def _send_finished(self, results: Sequence[ExecutionResult]) -> None:
        raised = {result.claimed.task_id: result for result in results}
        rows = Task.objects.using(self._database).filter(pk__in=raised, status__in=_FINISHED)
        for row in rows:
            result = raised[row.pk]
            is_mine = (row.claim, row.claimed_by_worker_id) == (result.claimed.claim, result.execution.runner.worker_id)
            # A reaper that took this worker for dead has sent the signal of that end.
            if is_mine and row.error_code != OperationalCode.WORKER_CRASHED:
                _send_handling(result.exception, partial(send_finished, [row]))

    def _send_failures(self, results: Sequence[ExecutionResult]) -> None:
        raised = {result.claimed.task_id: result for result in results}
        for attempt in failures(self._database, {key: result.claimed.attempt for key, result in raised.items()}):
            result = raised[attempt.task_id]
            is_mine = attempt.worker_id == result.execution.runner.worker_id
            if is_mine and attempt.outcome == AttemptOutcome.FAILED:  # otherwise a reaper took this worker for dead
                _send_handling(result.exception, partial(send_failure, attempt))


def _send_handling(exception: BaseException | None, send: Job) -> None:
    """Send a signal so that receivers find the traceback in ``sys.exc_info()``, as Django promises."""
    try:
        if exception is not None:
            raise exception
    except BaseException:  # noqa: BLE001  # it was raised one line above
        send()
    else:
        send()
