"""The producer: the loop of a runner that claims tasks for its slots and stores their results.

Each round waits for results, notifications and commands, receives them, and then does what is due: a tick, which stores
what has ended and claims for the free slots in one transaction; and now and then a poll, which finds out where there is
work. Results that arrive during a tick go into the next, so the batch size follows the load without tuning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

from django.db import Error, connections

from ..core.current_task import log_attributes
from ..core.exceptions import TaskRevoked
from ..core.sync import MAX_WAIT
from ..db.errors import is_outage, is_row_error, lacks_privilege
from ..db.notifications import ANY_QUEUE, SlotFreed, TaskReady
from ..enqueue.send_signals import dispatching_to
from ..models.claims import ClaimedTask, ClaimLost
from ..models.worker import WorkerRequest
from ..workflows import gateway
from . import console_logging
from .config import Until
from .execution import Execution, ExecutionResult, NotStarted
from .inbox import Command, Gather, InboxItem
from .listener import POLL_DELAY
from .poll import Poller
from .runner_state import NEVER, RunnerState
from .slot_pool import SlotPool
from .started_registry import ExitReason
from .tick import RESULT_WAIT, Ticker
from .watchdog import INTERRUPT_INTERVAL, Watchdog

logger = logging.getLogger("horsies_django.worker")

T = TypeVar("T")

#: Minimum seconds between two ticks while every slot has a task waiting for it.
MIN_TICK_INTERVAL: Final = 0.002

#: Seconds after which the workflow node of a running task is marked as running.
NODE_RUNNING_AFTER: Final = 0.02

#: Minimum seconds between two reads of the worker's own row, however many notifications say that it asks for something.
REQUEST_CHECK_INTERVAL: Final = 0.5

#: Seconds until the next attempt after the database has failed: the first pause, and the longest.
_FIRST_PAUSE: Final = 0.1
_MAX_PAUSE: Final = 5.0


class Producer:
    """Keeps the slots of one runner busy until it is stopped or, by its configuration, has done its work."""

    def __init__(self, state: RunnerState) -> None:
        self._state = state
        self._store = state.store
        self._poller = Poller(state)
        self._ticker = Ticker(state, self._poller)
        self._watchdog = Watchdog(state)
        self._is_done = False
        self._is_aborted = False
        self._signals_seen = 0
        self._pause = _FIRST_PAUSE  # before the next attempt after a failure of the database
        self._request_checked_at = -NEVER
        self._check_request_at = 0.0 if state.is_quiet else NEVER  # when to read the worker's row
        self._record_quiet_at = NEVER  # when to write to the row what the last signal asked for
        #: Whether executions run on or could not be stored: their tasks are recovered once the process has ended.
        self.leaves_executions = False

    @contextmanager
    def registered(self) -> Iterator[None]:
        """Be registered as a worker during the block, which runs the loop itself with :meth:`run_once`."""
        with dispatching_to(self._state.signals.put):
            self._retry(self._register)
            try:
                yield
            finally:
                self._state.signals.close(timeout=5.0)
                self._retry(self._store.leave)

    def submit(self, pool: SlotPool, tasks: Sequence[ClaimedTask]) -> None:
        """Run tasks that this worker has claimed and started."""
        self._ticker.submit(pool, tasks)

    def run(self) -> ExitReason:
        """Register, work until done, hand back what has not started, and leave; return why."""
        state = self._state
        with dispatching_to(state.signals.put):
            while not self._retry(self._register) and state.stop_by is None:
                pass  # each attempt waits
            if state.registry is not None:
                state.registry.record_registered()
            with state.inbox.progress.watched():
                while not self._is_done:
                    self.run_once()
            self._retry(self._watchdog.save_output)  # of what a stop cuts short
            # A supervisor recovers what is left after the end of this process, and so of its executions.
            self.leaves_executions = state.is_holding and state.registry is not None
            if self.leaves_executions:
                self._retry(self._hand_back_not_started)
                logger.warning("worker leaves tasks to its supervisor id=%s", state.worker.worker_id)
            elif state.is_holding:
                self._recover_held()
            state.signals.close(timeout=5.0)
            if not self.leaves_executions:
                self._retry(self._store.leave)
            return state.reported_exit_reason

    def run_once(self) -> None:
        """Wait for something to do, and do it."""
        state, poller = self._state, self._poller
        was_busy = any(pool.queues for pool in state.pools)
        self._receive(state.inbox.take(*self._wait()))
        self._watch_executions()
        now = time.monotonic()
        if now >= state.results.retry_at:
            state.results.retry_postponed()
        if now >= self._record_quiet_at:
            self._retry(self._record_quiet)
        if now >= self._check_request_at:
            self._retry(self._check_request)
        if poller.is_due_before_claim(was_busy=was_busy):
            self._follow(self._retry(poller.poll))
        if now >= state.results.check_locks_at:
            self._retry(self._check_locks)
        if now >= self._mark_nodes_at:
            self._retry(self._mark_nodes_running)
        if self._is_tick_due() and (tick := self._retry(self._ticker.write)) is not None:
            self._ticker.apply(tick)
            self._follow(tick.request)
        if poller.releaser.is_due:
            self._retry(poller.release_blocked)
        if poller.is_due():
            self._follow(self._retry(poller.poll))
        console_logging.flush()
        state.signals.run_pending()
        self._is_done = self._has_ended()

    # When something is due.

    def _wait(self) -> tuple[float, Gather]:
        """Return for how many seconds nothing is due if nothing arrives, and whether results gather meanwhile."""
        state = self._state
        now = time.monotonic()
        if self._has_to_write() or self._poller.is_due():
            return max(0.0, self._next_tick_at() - now), Gather.ALL
        times = [
            now + MAX_WAIT,
            state.next_heartbeat,
            state.results.check_locks_at,
            state.results.retry_at,
            self._check_request_at,
            self._record_quiet_at,
            self._mark_nodes_at,
            self._watchdog.next_stop,
            self._watchdog.next_check,
            self._poller.releaser.next_at,
            *(pool.withdraw_at for pool in state.pools),
        ]
        if state.has_to_hand_back:
            times.append(state.hand_back_at)
        if state.stop_by is not None:
            times.append(state.stop_by)
        if state.has_room():
            times.append(self._poller.interval.next_poll)
        gathering = Gather.NONE
        if now < (results_due_at := self._results_due_at()):
            gathering = Gather.RESULTS
            times.append(results_due_at)
        return max(0.0, min(times) - now), gathering

    def _is_tick_due(self) -> bool:
        return self._has_to_write() and time.monotonic() >= self._next_tick_at()

    def _has_to_write(self) -> bool:
        """Whether there is something for a tick to write."""
        state, now = self._state, time.monotonic()
        if state.is_in_doubt or now >= state.next_heartbeat:
            return True
        if state.results.ready and now >= self._results_due_at():
            return True
        may_claim = state.may_claim
        for pool in state.pools:
            if (pool.prefetched and pool.free > 0) or (may_claim and pool.queues and pool.room):
                return True
        return now >= state.hand_back_at and state.has_to_hand_back

    def _next_tick_at(self) -> float:
        """When the next tick may begin: results are gathered for a while as long as each slot has a next task."""
        if self._state.stop_by is None and any(pool.has_waiting for pool in self._state.pools):
            return self._ticker.ended_at + MIN_TICK_INTERVAL
        return 0.0

    def _results_due_at(self) -> float:
        """When results are stored if no claim takes them along before: at once, unless claims follow each other fast.

        Results that the next nodes of a workflow or the tasks at a limit wait for are stored at once.
        """
        state = self._state
        if not (self._ticker.claims_fast and state.may_claim and self._store.selector.is_plain):
            return 0.0
        if any(pool.queues or pool.prefetch for pool in state.pools):
            return 0.0
        may_wait = all(result.may_wait for result in state.results.ready)
        return self._ticker.ended_at + RESULT_WAIT if may_wait else 0.0

    @property
    def _mark_nodes_at(self) -> float:
        """When to mark the workflow nodes of running tasks."""
        unmarked = self._state.unmarked_nodes
        return unmarked[0].submitted_at + NODE_RUNNING_AFTER if unmarked else NEVER

    def _has_ended(self) -> bool:
        """Whether the work is done, or the time that a stop leaves to running executions is over."""
        state, until = self._state, self._state.config.until
        if until is Until.STOPPED and not state.has_run_out:
            return False
        if state.stop_by is not None and time.monotonic() >= state.stop_by:
            return True
        has_to_store = state.results or state.has_to_hand_back
        if state.exit_reason and not has_to_store and not self._watchdog.may_finish():
            return True
        if state.is_holding or self._poller.releaser:
            return False
        if until is Until.DRAINED and state.stop_by is None and self._is_sending_signals():
            return False
        if state.has_run_out or state.is_quiet:
            return True
        is_waiting = until is Until.DRAINED and state.is_held_back
        return not (state.is_poll_requested or is_waiting or any(pool.queues for pool in state.pools))

    def _is_sending_signals(self) -> bool:
        """Whether receivers of signals still run. Requests a poll if one has run since the last call: it may send."""
        sent = self._state.signals.sent  # read once, for its thread counts on
        if sent != self._signals_seen:
            self._signals_seen, self._state.is_poll_requested = sent, True
        return sent != self._state.signals.taken

    # Receive.

    def _receive(self, items: Sequence[InboxItem]) -> None:
        for item in items:
            if isinstance(item, ExecutionResult):
                self._on_result(item)
            elif isinstance(item, NotStarted):
                self._on_not_started(item.execution)
            elif isinstance(item, SlotFreed):
                self._unblock(item.queue_name)
            elif isinstance(item, TaskReady):
                self._on_task_ready(item)
            else:
                self._on_command(item)

    def _on_result(self, result: ExecutionResult) -> None:
        execution = result.execution
        for pool in self._state.pools:
            if pool.remove(execution):
                if execution.has_started:
                    pool.start_ahead.record(execution.started_at - execution.submitted_at, result.duration)
                break
        self._unblock(result.claimed.queue_name)
        self._state.results.put(result)
        self._watchdog.record_end(execution)

    def _on_not_started(self, execution: Execution) -> None:
        if not any(pool.hand_back(execution) for pool in self._state.pools):
            return
        self._state.release_slot(execution)
        if execution.stop_reason is None:
            values = execution.task_id, execution.claimed.task_name, execution.claimed.queue_name
            message = "task could not start in time id=%s name=%s queue=%s: handed back"
            logger.warning(message, *values, extra=log_attributes(execution.claimed))

    def _unblock(self, queue_name: str) -> None:
        """Claim again from a queue that had no room."""
        for is_async in self._store.selector.unblock(queue_name):
            self._state.mark_ready(queue_name, is_async)

    def _on_task_ready(self, task_ready: TaskReady) -> None:
        if task_ready.queue_name == ANY_QUEUE:
            self._store.reset_policies()
            self._state.is_poll_requested = True
        else:
            self._state.mark_ready(task_ready.queue_name, task_ready.is_async)
        self._poller.interval.record_notification(task_ready.queue_name)

    def _on_command(self, command: Command) -> None:
        match command:
            case Command.POLL:
                self._state.is_poll_requested = True
                self._poller.interval.record_notification()
            case Command.POLL_SOON:
                self._poller.interval.poll_by(time.monotonic() + POLL_DELAY)
            case Command.CHECK_REVOKED:
                self._watchdog.request_check()
            case Command.CHECK_REQUEST:
                self._check_request_at = max(time.monotonic(), self._request_checked_at + REQUEST_CHECK_INTERVAL)
            case Command.PING:
                self._retry(self._store.ping)
            case Command.QUIET | Command.RESUME:
                self._set_quiet(is_quiet=command is Command.QUIET)
                self._record_quiet_at = 0.0
            case Command.STOP | Command.ABORT:
                self._state.stop()
                if command is Command.ABORT:
                    self._is_aborted, self._state.stop_by = True, 0.0

    # Requests: in the worker's row, which heartbeats and polls return too, or by signal.

    def _register(self) -> bool:
        self._store.register(is_quiet=self._state.is_quiet)
        if self._state.is_quiet:
            self._log_quiet()
        return True

    def _check_request(self) -> bool:
        """Read what the worker's row asks. A quiet worker does not poll. So it reads the row as often."""
        self._check_request_at, self._request_checked_at = NEVER, time.monotonic()
        self._follow(self._store.workers.request_of(self._state.worker.worker_id))
        if self._state.is_quiet:
            self._check_request_at = time.monotonic() + self._poller.interval.longest_pause
        return True

    def _follow(self, request: WorkerRequest | None) -> None:
        """Do what the worker's row asks. A signal overrides the row until it is recorded there."""
        if request is WorkerRequest.STOP:
            self._state.stop_on_request()
        elif request in (WorkerRequest.QUIET, WorkerRequest.CONTINUE) and self._record_quiet_at == NEVER:
            self._set_quiet(is_quiet=request is WorkerRequest.QUIET)

    def _set_quiet(self, *, is_quiet: bool) -> None:
        """Claim nothing more, hand back what has not started, and stay; or claim again."""
        state = self._state
        if state.is_quiet == is_quiet or state.stop_by is not None:
            return
        state.is_quiet = is_quiet
        if state.registry is not None:
            state.registry.record_quiet(is_quiet)
        if is_quiet:
            self._log_quiet()
            state.hand_back()
            self._check_request_at = time.monotonic() + self._poller.interval.longest_pause
        else:
            logger.info("worker resumed id=%s", state.worker.worker_id)
            state.is_poll_requested = True

    def _log_quiet(self) -> None:
        values = self._state.worker.worker_id, len(self._state.executions)
        logger.info("worker quiet id=%s running=%d: it claims nothing until resumed", *values)

    def _record_quiet(self) -> bool:
        """Write to the worker's row whether it is quiet, after a signal; if it is locked, at the next heartbeat."""
        is_recorded = self._store.workers.record_quiet(self._state.worker.worker_id, is_quiet=self._state.is_quiet)
        self._record_quiet_at = NEVER if is_recorded else self._state.next_heartbeat
        return True

    # Running executions.

    def _watch_executions(self) -> None:
        """Check running executions: their time limits, and whether this worker still holds their tasks."""
        state, watchdog, now = self._state, self._watchdog, time.monotonic()
        for pool in state.pools:
            if now >= pool.withdraw_at:
                pool.start_ahead.reset()
                state.withdraw(pool)
        if now >= watchdog.next_stop and watchdog.interrupt_due() and state.exit_reason is None:
            has_replacement = state.report(ExitReason.STUCK)
            state.exit_reason = ExitReason.STUCK if has_replacement else ExitReason.SPENT
        if state.is_spent and self._wants_replacement() and state.report(ExitReason.SPENT):
            state.exit_reason = ExitReason.SPENT
        watchdog.check_memory()
        if now >= watchdog.next_check:
            self._retry(watchdog.check_claims)

    def _wants_replacement(self) -> bool:
        """Whether to start a fresh runner beside this one, which has free slots and waits for a long execution.

        A runner whose slots of one kind are all taken gets none: ``threads=1`` promises one task at a time.
        """
        state = self._state
        is_waiting = state.exit_reason is None and state.stop_by is None and bool(state.executions)
        return is_waiting and all(pool.free > 0 for pool in state.pools)

    def _check_locks(self) -> bool:
        """Let those results be stored whose rows no transaction of their executions has locked any more."""
        results = self._state.results
        results.release_unlocked(self._store.locked_ids([result.claimed for result in results.maybe_locked]))
        return self._watchdog.save_output()

    def _mark_nodes_running(self) -> bool:
        """Mark the workflow nodes of executions that have run long enough to be seen."""
        running, unmarked = set(self._state.executions), self._state.unmarked_nodes
        if task_ids := [execution.task_id for execution in unmarked if execution in running]:
            gateway.mark_running(self._state.config.database, task_ids)
        unmarked.clear()
        return True

    # What is left at the end.

    def _recover_held(self) -> None:
        """Put back what has not ended, as after a crash, once the executions that a stop cuts short have ended.

        One that can't be stopped keeps its task: a reaper finds that once the process has ended.
        """
        still_running: set[Execution] = set()
        if self._state.stop_by is not None:
            timeout = 1.0 if self._is_aborted else self._state.config.timeout_grace
            ended, still_running = self._interrupt_all(timeout)
            for result in ended:
                is_cut_short = result.execution.stop_reason is TaskRevoked and result.completion.error is not None
                if not is_cut_short or result.is_stored:
                    self._on_result(result)
            if self._state.results and (tick := self._retry(self._ticker.write)) is not None:
                self._ticker.apply(tick)
        self._retry(partial(self._put_back, [execution.claimed for execution in still_running]))

    def _interrupt_all(self, timeout: float) -> tuple[list[ExecutionResult], set[Execution]]:
        """Interrupt every execution; return the results that came within ``timeout`` seconds, and what still runs."""
        running = set(self._state.executions)
        ended: list[ExecutionResult] = []
        deadline = time.monotonic() + timeout
        for execution in running:
            execution.request_stop(TaskRevoked)
        while running and time.monotonic() < deadline:
            for execution in running:
                execution.interrupt()
            for item in self._state.inbox.take(INTERRUPT_INTERVAL):
                if isinstance(item, ExecutionResult):
                    ended.append(item)
                    running.discard(item.execution)
                elif isinstance(item, NotStarted) and any(pool.hand_back(item.execution) for pool in self._state.pools):
                    running.discard(item.execution)
                elif item is Command.ABORT:
                    deadline = time.monotonic()
        return ended, running

    def _hand_back_not_started(self) -> bool:
        """Hand back what has not started, even where another transaction has locked its workflow: it did not crash."""
        if self._state.is_in_doubt or any(pool.withdrawn for pool in self._state.pools):
            with self._store.transaction():
                self._store.hand_back_unknown(self._state.known_tasks, at_last=True)
        return True

    def _put_back(self, still_running: Sequence[ClaimedTask]) -> bool:
        self._hand_back_not_started()
        count = self._store.recover_held(still_running, is_stopped=self._state.stop_by is not None)
        message = "worker left tasks unfinished id=%s tasks=%d: recovered as after a crash"
        logger.warning(message, self._state.worker.worker_id, count)
        return True

    # The database: an outage delays the worker and has no other effect.

    def _retry(self, action: Callable[[], T]) -> T | None:
        """Run ``action`` and return what it returns; None, after a pause, if it failed.

        Rows that make a statement fail for others are failed: their error would come back with every attempt. Raises
        the error inside a transaction of the caller, which is lost then, and an error that comes neither from the
        database nor from a row.
        """
        state, connection = self._state, connections[self._state.config.database]
        try:
            with state.inbox.progress:
                value = action()
        except ClaimLost:
            state.is_in_doubt = True
            return None
        except Exception as error:
            if connection.in_atomic_block:
                raise
            if is_row_error(error) and self._has_fixed_rows():
                return None
            if not isinstance(error, Error):
                raise
            if lacks_privilege(error):
                state.stop_forbidden(error)
            elif is_outage(error):
                logger.warning("database unavailable retry_in=%.1fs error=%s", self._pause, error)
            else:
                logger.exception("database refused a statement retry_in=%.1fs", self._pause)
            connection.close()
            self._receive(state.inbox.take(self._pause))
            # At most a heartbeat interval: a heartbeat follows an outage before a reaper takes the worker for dead.
            self._pause = min(self._pause * 2, state.options.recovery.heartbeat_interval, _MAX_PAUSE)
            return None
        self._pause = _FIRST_PAUSE
        return value

    def _has_fixed_rows(self) -> bool:
        try:
            with self._state.inbox.progress:
                return self._store.fail_unclaimable(self._state.pools) > 0
        except Error:
            logger.warning("unreadable rows not isolated", exc_info=True)
            return False
