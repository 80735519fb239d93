"""The producer: the loop of a runner that claims tasks for its slots and stores their results.

Each tick stores what has ended, sends a heartbeat if one is due, starts prefetched tasks and claims for the free slots,
in one transaction. Most ticks only store successes and claim replacements: one statement on PostgreSQL. Results that
arrive during a tick go into the next, so the batch size follows the load without tuning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from django.db import Error

from ..core.current_task import log_attributes
from ..core.exceptions import TaskRevoked
from ..db import postgres
from ..db.notifications import ANY_QUEUE, SlotFreed, TaskReady
from ..enqueue.send_signals import dispatching_to
from ..models.check_migrated import MissingPrivilege, raise_if_forbidden
from ..models.claims import ClaimedTask, WorkerInfo
from ..models.concurrency_limiter import Released
from ..models.worker import WorkerRequest
from ..workflows.gateway import AdvanceFailed
from . import console_logging
from .claim_budget import ClaimBudget
from .config import Until, WorkerConfig
from .database_retry import DatabaseRetry
from .execution import Execution
from .execution_result import ExecutionResult, NotStarted
from .exit_reason import ExitReason
from .inbox import Command, Inbox, InboxItem
from .limit_releaser import LimitReleaser
from .listener import POLL_DELAY, Listener
from .loop_schedule import LoopSchedule
from .loop_state import LoopState
from .poll_interval import PollInterval
from .queue_poller import QueuePoller
from .request_follower import RequestFollower
from .result_buffer import ResultBuffer
from .result_publisher import ResultPublisher
from .signal_dispatcher import SignalDispatcher
from .slot_pool import SlotPool
from .started_registry import StartedRegistry
from .store import MANY, PollView, WorkerStore
from .tick_transaction import Tick, TickTransaction
from .watchdog import INTERRUPT_INTERVAL, Watchdog

logger = logging.getLogger("horsies_django.worker")

#: Seconds from the beginning of a tick for which its claims need no check: a reaper takes them much later.
CLAIM_CONFIRMED_FOR: Final = 0.5

#: Seconds until the next attempt to hand back tasks whose workflow another transaction has locked.
HAND_BACK_INTERVAL: Final = 0.05


class Producer:
    """Keeps the slots of one runner busy until it is stopped or, by its configuration, has done its work.

    The only writer of the loop's state: collaborators read the state and return values, which are applied here.
    """

    def __init__(
        self,
        config: WorkerConfig,
        runner: WorkerInfo,
        inbox: Inbox,
        pools: Sequence[SlotPool],
        listener: Listener,
        on_retire: Callable[[ExitReason], bool],
        started_registry: StartedRegistry | None,
        *,
        is_inline: bool = False,
    ) -> None:
        self._options = config.options  # each look-up would cost as much as a short task
        heartbeat_interval = self._options.recovery.heartbeat_interval
        self._config = config
        self._runner = runner
        self._inbox = inbox
        self._pools = pools
        self._listener = listener
        self._on_retire = on_retire
        self._started_registry = started_registry
        self._state = LoopState(
            list(pools),
            next_heartbeat=time.monotonic() + heartbeat_interval,
            is_quiet=config.is_quiet,
        )
        self._store = WorkerStore(config, runner)
        self._buffer = ResultBuffer()
        self._watchdog = Watchdog(config, pools)
        self._poll_interval = PollInterval(config.poll_interval, config.processes)
        self._budget = ClaimBudget(config, pools, self._state)
        self._poller = QueuePoller(self._store, pools, self._budget, self._poll_interval, self._state)
        self._transaction = TickTransaction(config, self._store, pools, self._buffer, self._budget)
        self._releaser = LimitReleaser(self._store, pools)
        self._requests = RequestFollower(runner, self._store, pools, self._poll_interval, started_registry, self._state)
        self._schedule = LoopSchedule(
            self._state,
            pools,
            self._buffer,
            self._budget,
            self._requests,
            self._poller,
            self._poll_interval,
            self._releaser,
            self._watchdog,
        )
        self._signals = SignalDispatcher(
            config.database,
            has_thread=not is_inline,
            on_sent=partial(inbox.put, Command.POLL) if config.until is Until.DRAINED else None,
        )
        self._publisher = ResultPublisher(
            config.database, self._store, pools, listener, self._signals, started_registry, self._on_privilege_lost
        )
        self._retry = DatabaseRetry(
            config.database,
            inbox.progress,
            wait=lambda seconds: self._receive(inbox.take(seconds)),
            on_claim_lost=self._on_claim_lost,
            longest_pause=heartbeat_interval,
            fix_rows=lambda: self._store.fail_unclaimable(pools),
            on_privilege_lost=self._on_privilege_lost,
        )

    @property
    def leaves_executions(self) -> bool:
        """Whether executions run on or could not be stored: their tasks are recovered once the process has ended."""
        return self._state.leaves_executions

    @property
    def is_holding(self) -> bool:
        """Whether it holds tasks, or results that are not stored."""
        return self._schedule.is_holding

    @property
    def may_claim(self) -> bool:
        """Whether it may claim: it is neither stopping nor quiet."""
        return self._budget.may_claim

    @contextmanager
    def registered(self) -> Iterator[None]:
        """Be registered as a worker during the block, which runs the loop itself with :meth:`run_once`."""
        with dispatching_to(self._signals.put):
            self._retry(self._register)
            try:
                yield
            finally:
                self._signals.close(timeout=5.0)
                self._retry(self._store.leave)

    def submit(self, pool: SlotPool, claims: Sequence[ClaimedTask]) -> None:
        """Run tasks that this worker has claimed and started."""
        executions = list(map(self._new_execution, claims))
        pool.submit(executions)
        self._state.unmarked_nodes += [one for one in executions if one.claim.workflow_id is not None]

    def run(self) -> ExitReason:
        """Register, work until done, hand back what has not started, and leave; return why."""
        with dispatching_to(self._signals.put):
            return self._run()

    def _run(self) -> ExitReason:
        state = self._state
        while not self._retry(self._register) and state.stop_by is None:
            pass  # each attempt waits
        if self._started_registry is not None:
            self._started_registry.record_registered()
        with self._inbox.progress.watched():
            while not state.is_done:
                self.run_once()
        # A supervisor recovers what is left after the end of this process, and so of its executions.
        state.leaves_executions = self._schedule.is_holding and self._started_registry is not None
        if state.leaves_executions:
            self._retry(self._hand_back_not_started)
            logger.warning("worker leaves tasks to its supervisor id=%s", self._runner.worker_id)
        elif self._schedule.is_holding:
            self._recover_held()
        self._signals.close(timeout=5.0)
        if not state.leaves_executions:
            self._retry(self._store.leave)
        return self._budget.exit_reason

    def run_once(self) -> int:
        """Wait for something to do and do it; return how many tasks were claimed or stored."""
        state = self._state
        was_busy = any(pool.has_work for pool in self._pools)
        wait = self._schedule.wait()
        self._receive(self._inbox.take(wait.seconds, gathers=wait.gathers))
        self._watch_executions()
        if time.monotonic() >= self._buffer.retry_at:
            self._buffer.retry_postponed()
        if time.monotonic() >= self._requests.record_at:
            self._retry(self._requests.record)
        if time.monotonic() >= self._requests.next_at:
            self._apply_request(self._retry(self._requests.check))
        if self._poller.is_due_before_claim(was_busy=was_busy):
            self._retry(self._poll)
        if time.monotonic() >= self._buffer.check_locks_at:
            self._retry(self._check_locks)
        if time.monotonic() >= self._schedule.mark_nodes_at:
            self._retry(self._mark_nodes_running)
        tick = self._retry(self._tick) if self._schedule.is_tick_due() else None
        if tick is not None:
            self._apply(tick)
        if self._releaser.is_due:
            self._retry(self._release_blocked)
        if self._poller.is_due:
            self._retry(self._poll)
        console_logging.flush()
        self._signals.run_pending()
        state.is_done = self._is_done() or self._budget.is_over
        return tick.claimed + len(tick.stored) if tick else 0

    # Whether the work is done.

    def _is_done(self) -> bool:
        state = self._state
        has_nothing_to_store = not self._buffer and not self._schedule.has_to_hand_back
        if state.exit_reason and has_nothing_to_store and not self._watchdog.may_finish():
            return True
        if self._schedule.is_holding or self._releaser:
            return False
        if self._config.until is Until.DRAINED and state.stop_by is None and self._is_sending_signals():
            return False
        if self._budget.has_run_out:
            return True
        if state.is_quiet:
            return self._config.until is not Until.STOPPED
        is_waiting = self._config.until is Until.DRAINED and state.is_held_back
        is_drained = not state.is_poll_requested and not is_waiting and not any(pool.has_work for pool in self._pools)
        return self._config.until is not Until.STOPPED and is_drained

    def _is_sending_signals(self) -> bool:
        """Whether receivers of signals still run. Requests a poll if one has run since the last call: it may send."""
        sent = self._signals.sent  # read once, for its thread counts on
        if sent != self._state.signals_seen:
            self._state.signals_seen, self._state.is_poll_requested = sent, True
        return sent != self._signals.taken

    # Events.

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
                self._poll_interval.record_notification(item.queue_name)
            else:
                self._on_command(item)

    def _on_command(self, command: Command) -> None:
        state = self._state
        if command is Command.POLL:
            state.is_poll_requested = True
            self._poll_interval.record_notification()
        elif command is Command.CHECK_REVOKED:
            self._watchdog.request_check()
        elif command is Command.PING:
            self._retry(self._store.ping)
        elif command is Command.POLL_SOON:
            self._poll_interval.poll_by(time.monotonic() + POLL_DELAY)
        elif command is Command.CHECK_REQUEST:
            self._requests.check_soon()
        elif command in (Command.QUIET, Command.RESUME):
            self._apply_request(self._requests.follow_signal(is_quiet=command is Command.QUIET))
        else:
            self.stop()
            if command is Command.ABORT:
                state.is_aborted, state.stop_by = True, 0.0

    def _on_result(self, result: ExecutionResult) -> None:
        execution = result.execution
        for pool in self._pools:
            if pool.remove(execution) and execution.has_started:
                pool.start_ahead.record(execution.started_at - execution.submitted_at, result.duration)
        self._unblock(result.claim.queue_name)
        self._buffer.put(result)
        self._watchdog.record_end(execution)

    def _on_not_started(self, execution: Execution) -> None:
        if not any(pool.hand_back(execution) for pool in self._pools):
            return
        self._release_slot(execution)
        if execution.stop_reason is None:
            values = execution.task_id, execution.claim.task_name, execution.claim.queue_name
            message = "task could not start in time id=%s name=%s queue=%s: handed back"
            logger.warning(message, *values, extra=log_attributes(execution.claim))

    def _on_task_ready(self, task_ready: TaskReady) -> None:
        if task_ready.queue_name == ANY_QUEUE:
            self._store.reset_policies()
            self._state.is_poll_requested = True
            return
        for pool in self._pools:
            if task_ready.is_async in (None, pool.is_async):
                pool.mark_ready(task_ready.queue_name)

    def _unblock(self, queue_name: str) -> None:
        """Claim again from a queue that had no room."""
        kinds = self._store.selector.unblock(queue_name)
        for pool in self._pools:
            if pool.is_async in kinds:
                pool.mark_ready(queue_name)

    def _mark_ready(self, queue_name: str, is_async: bool) -> None:
        for pool in self._pools:
            if pool.is_async == is_async and self._config.serves(queue_name):
                pool.mark_ready(queue_name)

    # Stopping.

    def stop(self) -> None:
        """Claim no more; wait for running executions, for ``shutdown_timeout`` seconds at most."""
        if self._state.stop_by is None:
            running = sum(len(pool.running) for pool in self._pools)
            logger.info("worker stopping id=%s running=%d", self._runner.worker_id, running)
            self._state.stop_by = time.monotonic() + self._config.shutdown_timeout
            self._withdraw_all()

    def stop_on_request(self) -> None:
        """Claim no more; wait for running executions, as long as they take; then leave for good."""
        if self._state.stop_by is None and self._state.exit_reason is None:
            running = sum(len(pool.running) for pool in self._pools)
            logger.info("worker asked to stop id=%s running=%d", self._runner.worker_id, running)
            self._state.exit_reason = ExitReason.STOP_REQUESTED
            self._withdraw_all()

    def _apply_request(self, request: WorkerRequest | None) -> None:
        """Stop; claim nothing more, hand back what has not started, and stay; or claim again."""
        if request is WorkerRequest.STOP:
            self.stop_on_request()
        elif request is WorkerRequest.QUIET:
            self._state.is_quiet = True
            self._withdraw_all()
        elif request is WorkerRequest.CONTINUE:
            self._state.is_quiet, self._state.is_poll_requested = False, True

    def _register(self) -> bool:
        self._store.register(is_quiet=self._state.is_quiet)
        if self._state.is_quiet:
            self._requests.log_quiet()
        return True

    def _on_claim_lost(self) -> None:
        self._state.is_in_doubt = True

    def _on_privilege_lost(self, error: Error) -> None:
        """Stop, because the role has lost a privilege and no other attempt would succeed. Logs that once."""
        if self._state.exit_reason is ExitReason.FORBIDDEN:
            return
        try:
            raise_if_forbidden(self._config.database, error)
        except MissingPrivilege as problem:
            logger.error("worker lost a privilege id=%s error=%s", self._runner.worker_id, problem)
        self._state.exit_reason = ExitReason.FORBIDDEN
        self.stop()

    def _withdraw_all(self) -> None:
        for pool in self._pools:
            self._withdraw(pool)

    def _withdraw(self, pool: SlotPool) -> None:
        """Take back what was submitted and has not started."""
        for execution in pool.withdraw():
            self._release_slot(execution)

    def _release_slot(self, execution: Execution) -> None:
        if self._started_registry is not None:
            self._started_registry.release(execution.slot)

    def _recover_held(self) -> None:
        """Put back what has not ended, as after a crash, once the executions that a stop cuts short have ended.

        One that can't be stopped keeps its task: a reaper finds that once the process has ended.
        """
        still_running: set[Execution] = set()
        if self._state.stop_by is not None:
            timeout = 1.0 if self._state.is_aborted else self._config.timeout_grace
            ended, still_running = self._interrupt_all(timeout)
            for result in ended:
                is_cut_short = result.execution.stop_reason is TaskRevoked and result.completion.error is not None
                if not is_cut_short or result.is_stored:
                    self._on_result(result)
            if self._buffer and (tick := self._retry(self._tick)) is not None:
                self._apply(tick)
        self._retry(partial(self._put_back, [execution.claim for execution in still_running]))

    def _interrupt_all(self, timeout: float) -> tuple[list[ExecutionResult], set[Execution]]:
        """Interrupt every execution; return the results that came within ``timeout`` seconds, and what still runs."""
        running = {execution for pool in self._pools for execution in pool.running.values()}
        ended: list[ExecutionResult] = []
        deadline = time.monotonic() + timeout
        for execution in running:
            execution.request_stop(TaskRevoked)
        while running and time.monotonic() < deadline:
            for execution in running:
                execution.interrupt()
            for item in self._inbox.take(INTERRUPT_INTERVAL):
                if isinstance(item, ExecutionResult):
                    ended.append(item)
                    running.discard(item.execution)
                elif isinstance(item, NotStarted) and any(pool.hand_back(item.execution) for pool in self._pools):
                    running.discard(item.execution)
                elif item is Command.ABORT:
                    deadline = time.monotonic()
        return ended, running

    def _hand_back_not_started(self) -> bool:
        """Hand back what has not started, even where another transaction has locked its workflow: it did not crash."""
        if self._state.is_in_doubt or any(pool.withdrawn for pool in self._pools):
            with self._store.transaction():
                self._store.hand_back_unknown(self._transaction.known_claims(), at_last=True)
        return True

    def _put_back(self, still_running: Sequence[ClaimedTask]) -> bool:
        self._hand_back_not_started()
        count = self._store.recover_held(still_running, is_stopped=self._state.stop_by is not None)
        logger.warning(
            "worker left tasks unfinished id=%s tasks=%d: recovered as after a crash", self._runner.worker_id, count
        )
        return True

    # Running executions.

    def _watch_executions(self) -> None:
        """Check running executions: their time limits, and whether this worker still holds their tasks."""
        state = self._state
        for pool in self._pools:
            if time.monotonic() >= pool.withdraw_at:
                pool.start_ahead.reset()
                self._withdraw(pool)
        if self._watchdog.is_due() and self._watchdog.interrupt_due() and state.exit_reason is None:
            has_replacement = self._on_retire(ExitReason.STUCK)
            state.exit_reason = ExitReason.STUCK if has_replacement else ExitReason.SPENT
        if self._budget.wants_replacement() and self._on_retire(ExitReason.SPENT):
            state.exit_reason = ExitReason.SPENT
        if not state.has_outgrown_memory:
            state.has_outgrown_memory = self._watchdog.exceeds_memory()
        if self._watchdog.is_check_due():
            self._retry(self._check_claims)

    def _check_claims(self) -> bool:
        """Store the progress of running executions, and stop those whose tasks this worker does not hold any more.

        Executions that have ended and lost their tasks are marked as revoked too, for the log.
        """
        executions = [execution for pool in self._pools for execution in pool.running.values()]
        for execution, note in self._store.note_progress(executions).items():
            execution.stored_progress = note
        if len(executions) > MANY and self._watchdog.may_count() and self._holds_all(len(executions)):
            self._watchdog.record_check()
            return True
        results = () if self._state.is_in_doubt else self._buffer.all
        ended = [result.execution for result in results if not result.is_stored]
        held = self._store.still_held([execution.claim for execution in (*executions, *ended)])
        for execution in ended:
            if (execution.task_id, execution.claim.claim) not in held:
                execution.request_stop(TaskRevoked)
        for pool, execution in self._watchdog.revoked(executions, held):
            message = "task revoked id=%s: it is asked to stop"
            logger.warning(message, execution.task_id, extra=log_attributes(execution.claim))
            execution.request_stop(TaskRevoked)
            pool.watch(execution)
            execution.interrupt()
        return True

    def _holds_all(self, running: int) -> bool:
        """Whether the table says that this worker runs as many tasks as it knows of. To compare 10,000 takes longer."""
        withdrawn = sum(len(pool.withdrawn) for pool in self._pools)
        return self._store.count_running() == running + withdrawn + len(self._buffer.all)

    def _check_locks(self) -> bool:
        """Let those results be stored whose rows no transaction of their executions has locked any more."""
        locked = self._store.locked_ids([result.claim for result in self._buffer.maybe_locked])
        self._buffer.release_unlocked(locked)
        return True

    def _mark_nodes_running(self) -> bool:
        """Mark the workflow nodes of executions that have run long enough to be seen."""
        running = {execution for pool in self._pools for execution in pool.running.values()}
        running -= {result.execution for result in self._buffer.all}
        unmarked = self._state.unmarked_nodes
        self._store.mark_nodes_running([execution.claim for execution in unmarked if execution in running])
        unmarked.clear()
        return True

    # Polling, and limits with room.

    def _poll(self) -> bool:
        began = time.monotonic()
        result = self._poller.poll()
        duration = time.monotonic() - began
        view, state = result.view, self._state
        is_notified = self._listener.is_alive
        self._poll_interval.set_notified(is_notified)
        self._store.selector.set_notified(is_notified)
        state.is_poll_requested = result.released > 0
        state.is_held_back = view.is_held_back
        for pool, queues in zip(self._pools, view.queues, strict=True):
            pool.set_queues(queues, is_all=not view.is_partial)
        if view.is_partial:
            self._continue_round(view)
        due_in = None if result.is_overdue else view.deferred_in
        self._poll_interval.record_poll(found=view.has_work, due_in=due_in, duration=duration)
        self._releaser.add(result.due_limits)
        if view.limits_due_in is not None and view.limits_due_in > 0:
            self._poll_interval.poll_by(time.monotonic() + view.limits_due_in)
        self._poll_interval.poll_by(self._store.selector.unblocks_at)
        self._apply_request(self._requests.follow(view.request))
        return True

    def _continue_round(self, view: PollView) -> None:
        """Poll on for the queues that this poll has not seen, until none of them holds work."""
        state = self._state
        has_work = any(pool.has_work for pool in self._pools)
        state.has_found_work = state.has_found_work or has_work
        state.is_poll_requested = state.is_poll_requested or (not has_work and (view.has_more or state.has_found_work))
        state.has_found_work = state.has_found_work and view.has_more

    def _release_blocked(self) -> bool:
        for released in self._releaser.release():
            self._apply_released(released)
        return True

    def _apply_released(self, released: Released) -> None:
        """Claim the released tasks soon, and notify other workers of those for which there is no room here."""
        if released.recheck_in is not None:
            self._poll_interval.poll_by(time.monotonic() + released.recheck_in)
        for (queue, is_async), count in released.routes.items():
            room = 0
            for pool in self._pools:
                if pool.is_async == is_async and self._config.serves(queue):
                    pool.mark_ready(queue)
                    room = pool.room if self._budget.may_claim else 0
            if count > room:
                self._store.notify_others([(queue, is_async)])

    # Ticks.

    def _tick(self) -> Tick:
        state = self._state
        if not self._schedule.is_holding and not any(pool.has_work for pool in self._pools):
            tick = self._transaction.write_heartbeat()
        else:
            try:
                tick = self._transaction.write(
                    state.pool_order,
                    is_heartbeat_due=time.monotonic() >= state.next_heartbeat,
                    is_in_doubt=state.is_in_doubt,
                    mark_ready=self._mark_ready,
                )
            except (Error, AdvanceFailed) as error:  # it may have committed although its answer was lost
                state.is_in_doubt = True
                if isinstance(error, Error) and postgres.is_lock_timeout(error):
                    self._store.skip_locked()
                raise
        state.is_in_doubt = tick.is_in_doubt
        return tick

    def _apply(self, tick: Tick) -> None:
        """Apply to memory what a tick has committed: remove results, submit executions, notify."""
        state = self._state
        state.ticked_at = time.monotonic()
        ended = tick.stored
        self._buffer.remove(ended)
        self._buffer.postpone(tick.postponed)
        if tick.has_heartbeat:
            # A heartbeat that had to wait is as old as the tick is long.
            state.next_heartbeat = tick.began_at + self._options.recovery.heartbeat_interval
            if self._started_registry is not None:
                self._started_registry.record_heartbeat()
        self._apply_claims(tick)
        self._releaser.add([*(result.claim.limit_key for result in ended), *tick.limit_keys])
        if tick.has_resolved_doubt:
            state.is_poll_requested = True  # what was handed back can be claimed again
        if (tick.stored or tick.claimed or tick.handed_back) and self._config.until is Until.DRAINED:
            state.is_poll_requested = True  # a drain ends with a poll that follows its last change
        if tick.claimed:
            state.claimed += tick.claimed
            self._listener.record_useful()
            self._poll_interval.record_claim()
        for pool, started in tick.started:
            self._rotate(pool, found=bool(started), is_emptied=pool in tick.emptied)
            pool.start_ahead.adapt()
            if pool.is_partial:
                pool.prefer_deep(started)
            self.submit(pool, self._still_claimed(started, tick))
        self._poll_interval.poll_by(self._store.selector.unblocks_at)
        delays = [result.completion.delay for result in ended if result.completion.delay is not None]
        if delays:
            self._poll_interval.poll_by(time.monotonic() + min(delays))
        with self._inbox.progress:
            self._publisher.publish(ended)
        if tick.request is not None:
            self._apply_request(self._requests.follow(tick.request))

    def _apply_claims(self, tick: Tick) -> None:
        state = self._state
        for pool in tick.stalled:
            pool.mark_stalled()
        for pool in tick.emptied:
            had_unlisted = pool.has_unlisted
            pool.mark_empty()
            state.is_poll_requested = state.is_poll_requested or (had_unlisted and not pool.has_work)
        for pool, kept in tick.handed_back:
            state.claimed -= len(pool.withdrawn) - len(kept)
            pool.set_withdrawn(kept)
        for pool, prefetched in tick.prefetched:
            pool.set_prefetched(prefetched)
        state.hand_back_at = time.monotonic() + HAND_BACK_INTERVAL if self._schedule.has_to_hand_back else 0.0

    def _rotate(self, pool: SlotPool, *, found: bool, is_emptied: bool) -> None:
        """Begin the next tick with the pool that found work last; two busy pools take turns."""
        order = self._state.pool_order
        order.remove(pool)
        order.insert(0 if found and is_emptied else len(order), pool)

    def _new_execution(self, claim: ClaimedTask) -> Execution:
        time_limit = self._config.task_timeout if claim.timeout is None else claim.timeout
        slot = None if self._started_registry is None else self._started_registry.acquire()
        return Execution(claim, self._options, self._runner, time_limit=time_limit, slot=slot)

    def _still_claimed(self, started: list[ClaimedTask], tick: Tick) -> list[ClaimedTask]:
        """Return the claims that may start: after a long pause of the process, those that this worker still holds."""
        if not started or time.monotonic() - tick.began_at < CLAIM_CONFIRMED_FOR:
            return started
        self._state.next_heartbeat = time.monotonic()  # the last one is as old in the table as the tick is long
        held = self._retry(lambda: self._store.still_held(started))
        if held is None:
            self._state.is_in_doubt = True
        return [claim for claim in started if (claim.task_id, claim.claim) in (held or ())]
