"""The pump: the loop of a runner.

A tick stores what has ended, beats, starts what was prefetched and claims for the free slots, in one transaction.
Mostly there is but to exchange successes for new claims, which is one statement where the database can. What ends
during a tick waits for the next one, so batches are as large as the load is high, and no timer is to be tuned.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from django.db import Error

from ..core import recent_exceptions
from ..core.exceptions import TaskRevoked
from ..core.sync import MAX_WAIT
from ..db.errors import lacks_privilege
from ..db.notifications import ANY_QUEUE, SlotFreed, TaskReady, notify_slot_freed_after_commit
from ..enqueue.send_signals import handing_over
from ..models.check_migrated import MissingPrivilege, raise_if_forbidden
from ..models.claims import ClaimedTask, Runner
from . import console_logging
from .claim_budget import ClaimBudget
from .config import Until, WorkerConfig
from .connection import is_callers_alone
from .database_retry import DatabaseRetry
from .execution import Execution
from .execution_result import ExecutionResult, NotStarted
from .exit_reason import ExitReason
from .hints import POLL_DELAY
from .inbox import Command, Inbox, InboxItem
from .limit_releaser import LimitReleaser
from .listener import Listener
from .poll_interval import PollInterval
from .queue_poller import QueuePoller
from .result_buffer import ResultBuffer
from .signal_dispatcher import SignalDispatcher
from .slot_pool import SlotPool
from .started_registry import StartedRegistry
from .stopping import stop_bodies
from .store import WorkerStore
from .tick import Tick
from .tick_transaction import TickTransaction
from .watchdog import Watchdog

logger = logging.getLogger("horsies_django.worker")

#: Seconds from the beginning of a tick for which what it has claimed is surely still this worker's.
CLAIM_CONFIRMED_FOR: Final = 0.5

#: Seconds between two ticks at least, while the slots have enough to do.
MIN_TICK_INTERVAL: Final = 0.002

#: Seconds until the next try to hand back tasks whose workflow somebody has locked.
HAND_BACK_INTERVAL: Final = 0.05

#: Seconds between two looks at the worker's own row, however often somebody says that it asks the worker to stop.
STOP_CHECK_INTERVAL: Final = 0.5

#: Seconds for which a body runs until its node is shown as running.
NODE_RUNNING_AFTER: Final = 0.02


class Producer:
    """Keeps the slots of one runner busy until it is told to stop or, by its plan, has done its work."""

    def __init__(
        self,
        config: WorkerConfig,
        runner: Runner,
        inbox: Inbox,
        pools: Sequence[SlotPool],
        listener: Listener,
        retire: Callable[[ExitReason], bool],
        started_registry: StartedRegistry | None,
    ) -> None:
        self._config = config
        self._runner = runner
        self._inbox = inbox
        self._pools = pools
        self._listener = listener
        self._watchdog = Watchdog(config, pools)
        self._on_retire = retire
        self._started_registry = started_registry
        self._store = WorkerStore(config, runner)
        self._signals = SignalDispatcher(
            config.database,
            has_thread=not is_callers_alone(config.database),
            on_sent=partial(inbox.put, Command.POLL) if config.until is Until.DRAINED else None,
        )
        self._signals_seen = 0
        self._poll_interval = PollInterval(config.poll_interval)
        self._buffer = ResultBuffer()
        self._budget = ClaimBudget(config, pools, self._watchdog)
        self._writer = TickTransaction(config, self._store, pools, self._buffer, self._budget)
        self._releaser = LimitReleaser(config, self._store, pools, self._budget, self._poll_interval.poll_by)
        self._poller = QueuePoller(
            config, self._store, pools, self._budget, listener, self._poll_interval, self._releaser
        )
        self._retry = DatabaseRetry(
            config.database,
            wait=lambda seconds: self._receive(inbox.take(seconds)),
            doubt=self._writer.doubt,
            longest_pause=config.options.recovery.beat_interval,
            isolate=lambda: self._store.isolate(pools),
            forbidden=self._on_privilege_lost,
        )
        self._next_heartbeat = time.monotonic() + config.options.recovery.beat_interval
        self._ticked_at = float("-inf")
        self._hand_back_at = 0.0
        self._check_stop_at = float("inf")
        self._stop_checked_at = float("-inf")
        self._unmarked_nodes: list[Execution] = []
        self._done = False
        self._is_aborted = False
        #: Whether bodies run on, or could not be stored: their tasks are put back once the process has ended.
        self.leaves_bodies = False

    def run(self) -> ExitReason:
        """Register, work until done, hand back what was not begun, and leave; return why."""
        with handing_over(self._signals.put):
            return self._run()

    def _run(self) -> ExitReason:
        while not self._retry(self._store.register) and self._budget.stop_by is None:
            pass  # each try waits
        if self._started_registry is not None:
            self._started_registry.record_registered()
        while not self._done:
            self.run_once()
        # Where there is a supervisor, it recovers what is left: after the end of this process, and so of the bodies.
        self.leaves_bodies = self._is_holding and self._started_registry is not None
        if self.leaves_bodies:
            self._retry(self._hand_back_not_started)
            logger.warning("worker leaves tasks to its supervisor id=%s", self._runner.worker_id)
        elif self._is_holding:
            self._recover_held()
        self._signals.close(timeout=5.0)
        if not self.leaves_bodies:
            self._retry(self._store.leave)
        return self._budget.leaving

    @property
    def _is_holding(self) -> bool:
        is_busy = any(pool.running or pool.prefetched or pool.withdrawn for pool in self._pools)
        return self._writer.in_doubt or bool(self._buffer) or is_busy

    def run_once(self) -> int:
        """Wait for something to do and do it; return how many tasks were claimed or stored."""
        was_busy = any(pool.has_work for pool in self._pools)
        self._receive(self._inbox.take(self._wait()))
        self._supervise_executions()
        if time.monotonic() >= self._buffer.retry_at:
            self._buffer.retry_postponed()
        if time.monotonic() >= self._check_stop_at:
            self._retry(self._check_stop_request)
        if self._poller.is_due_first(was_busy=was_busy):
            self._retry(self._poll)
        if time.monotonic() >= self._buffer.check_locks_at:
            self._retry(self._store_unlocked)
        if time.monotonic() >= self._mark_nodes_at:
            self._retry(self._mark_nodes_running)
        tick = self._retry(self._tick) if self._has_work() and time.monotonic() >= self._next_tick_at() else None
        if tick is not None:
            self._apply(tick)
        if self._releaser.is_due:
            self._retry(self._releaser.open)
        if self._poller.is_due:
            self._retry(self._poll)
        console_logging.flush()
        self._signals.send()
        self._done = self._is_done() or self._budget.is_over
        return tick.claimed + len(tick.stored) if tick else 0

    def stop(self) -> None:
        """Claim no more; wait for the bodies that run, for the plan's ``shutdown_timeout`` at most."""
        if self._budget.stop_by is None:
            running = sum(len(pool.running) for pool in self._pools)
            logger.info("worker stopping id=%s running=%d", self._runner.worker_id, running)
            self._budget.stop_by = time.monotonic() + self._config.shutdown_timeout
            for pool in self._pools:
                self._withdraw_waiting(pool)

    def dismiss(self) -> None:
        """Claim no more; wait for the bodies that run, as long as they take; then leave for good."""
        if self._budget.stop_by is None and self._budget.retired is None:
            running = sum(len(pool.running) for pool in self._pools)
            logger.info("worker asked to stop id=%s running=%d", self._runner.worker_id, running)
            self._budget.retired = ExitReason.STOP_REQUESTED
            for pool in self._pools:
                self._withdraw_waiting(pool)

    def _on_privilege_lost(self, error: Error) -> None:
        """Stop, for the role has lost a privilege: no other try would go better. Says so once."""
        if self._budget.retired is ExitReason.FORBIDDEN:
            return
        try:
            raise_if_forbidden(self._config.database, error)
        except MissingPrivilege as problem:
            logger.error("worker stops id=%s: %s", self._runner.worker_id, problem)
        self._budget.retired = ExitReason.FORBIDDEN
        self.stop()

    # What to do, and when.

    def _has_work(self) -> bool:
        may = self._budget.may_claim
        starts = any(pool.startable for pool in self._pools)
        claims = may and any(pool.has_work and pool.room for pool in self._pools)
        hands_back = self._has_to_hand_back and time.monotonic() >= self._hand_back_at
        to_say = self._writer.in_doubt or self._buffer.is_ready or hands_back
        return to_say or starts or claims or time.monotonic() >= self._next_heartbeat

    @property
    def _has_to_hand_back(self) -> bool:
        may = self._budget.may_claim
        return any(pool.withdrawn or (pool.prefetched and not may) for pool in self._pools)

    def _next_tick_at(self) -> float:
        """Until when to let ends come together: no slot waits for a tick as long as there is something ahead of it."""
        is_fed = any(pool.has_waiting for pool in self._pools) and self._budget.stop_by is None
        return self._ticked_at + MIN_TICK_INTERVAL if is_fed else 0.0

    def _wait(self) -> float:
        if self._has_work() or self._poller.is_due:
            return max(0.0, self._next_tick_at() - time.monotonic())
        moments = [
            self._next_heartbeat,
            self._check_stop_at,
            self._watchdog.next,
            self._buffer.next_at,
            self._mark_nodes_at,
            self._releaser.next,
            time.monotonic() + MAX_WAIT,
        ]
        if self._has_to_hand_back:
            moments.append(self._hand_back_at)
        if self._budget.stop_by is not None:
            moments.append(self._budget.stop_by)
        moments += [pool.withdraw_at for pool in self._pools]
        if self._budget.has_room():
            moments.append(self._poll_interval.next_poll)
        return max(0.0, min(moments) - time.monotonic())

    def _is_done(self) -> bool:
        if self._budget.retired and not self._buffer and not self._has_to_hand_back and not self._watchdog.hopeful():
            return True
        if self._is_holding or self._releaser:
            return False
        is_stopping = self._budget.stop_by is not None
        if self._config.until is Until.DRAINED and not is_stopping and self._is_sending_signals():
            return False
        if not self._budget.may_claim:
            return True
        is_waiting = self._config.until is Until.DRAINED and self._poller.is_held_back
        looked_in_vain = not self._poller.is_asked and not is_waiting and not any(pool.has_work for pool in self._pools)
        return self._config.until is not Until.STOPPED and looked_in_vain

    def _is_sending_signals(self) -> bool:
        """Whether receivers of signals still run. If any has run since the last look, another is asked for."""
        sent = self._signals.sent  # read once, for the thread counts on
        if sent != self._signals_seen:
            self._signals_seen, self._poller.is_asked = sent, True
        return sent != self._signals.taken

    def _receive(self, items: Sequence[InboxItem]) -> None:
        for item in items:
            if isinstance(item, ExecutionResult):
                self._on_result(item)
            elif isinstance(item, NotStarted):
                self._on_not_started(item.execution)
            elif isinstance(item, SlotFreed):
                self._on_slot_freed(item.queue_name)
            elif isinstance(item, TaskReady):
                self._on_task_ready(item)
                self._poll_interval.record_notification()
            else:
                self._handle_command(item)

    def _handle_command(self, command: Command) -> None:
        if command is Command.POLL:
            self._poller.is_asked = True
            self._poll_interval.record_notification()
        elif command is Command.CHECK_REVOKED:
            self._watchdog.hurry()
        elif command is Command.PING:
            self._retry(self._store.ping)
        elif command is Command.POLL_SOON:
            self._poll_interval.poll_by(time.monotonic() + POLL_DELAY)
        elif command is Command.CHECK_STOP_REQUEST:
            self._check_stop_at = max(time.monotonic(), self._stop_checked_at + STOP_CHECK_INTERVAL)
        else:
            self.stop()
            if command is Command.ABORT:
                self._is_aborted, self._budget.stop_by = True, 0.0

    def _on_result(self, outcome: ExecutionResult) -> None:
        for pool in self._pools:
            if pool.remove(outcome.execution) and outcome.execution.has_started:
                pool.start_ahead.record(outcome.execution.started_at - outcome.execution.submitted_at, outcome.duration)
        self._on_slot_freed(outcome.claim.queue_name)
        self._buffer.put(outcome)

    def _on_not_started(self, execution: Execution) -> None:
        if not any(pool.hand_back(execution) for pool in self._pools):
            return
        self._release_slot(execution)
        if execution.stop_reason is None:
            values = execution.task_id, execution.claim.task_name, execution.claim.queue_name
            logger.warning("task could not begin in time id=%s name=%s queue=%s: it goes back", *values)

    def _on_slot_freed(self, queue_name: str) -> None:
        """Ask for a place in a queue that had none."""
        kinds = self._store.selector.unblock(queue_name)
        for pool in self._pools:
            if pool.is_async in kinds:
                pool.mark_ready(queue_name)

    def _on_task_ready(self, wake: TaskReady) -> None:
        if wake.queue_name == ANY_QUEUE:
            self._store.reset_policies()
            self._poller.is_asked = True
            return
        for pool in self._pools:
            if wake.is_async in (None, pool.is_async):
                pool.mark_ready(wake.queue_name)

    # Doing it.

    def _supervise_executions(self) -> None:
        """Mind the bodies that run: their time limits, and whether their tasks are still this worker's."""
        for pool in self._pools:
            if time.monotonic() >= pool.withdraw_at:
                pool.start_ahead.reset()
                self._withdraw_waiting(pool)
        if self._watchdog.is_due() and self._watchdog.stop_bodies() and self._budget.retired is None:
            self._budget.retired = ExitReason.STUCK if self._on_retire(ExitReason.STUCK) else ExitReason.WORN_OUT
        if self._budget.wants_relief() and self._on_retire(ExitReason.WORN_OUT):
            self._budget.retired = ExitReason.WORN_OUT
        if self._watchdog.wants_check():
            self._retry(self._check_claims)

    def _withdraw_waiting(self, pool: SlotPool) -> None:
        """Take back what has been started and has not begun."""
        for execution in pool.withdraw():
            self._release_slot(execution)

    def _release_slot(self, execution: Execution) -> None:
        if self._started_registry is not None:
            self._started_registry.release(execution.slot)

    def _check_claims(self) -> bool:
        executions = [execution for pool in self._pools for execution in pool.running.values()]
        for execution, note in self._store.note_progress(executions).items():
            execution.stored_progress = note
        self._watchdog.checked(executions, self._store.still_mine([execution.claim for execution in executions]))
        return True

    def _store_unlocked(self) -> bool:
        """Store the ends of bodies that had saved their state once nothing holds their rows: nobody here may wait."""
        self._buffer.release_unlocked(self._store.locked([outcome.claim for outcome in self._buffer.maybe_locked]))
        return True

    @property
    def _mark_nodes_at(self) -> float:
        return self._unmarked_nodes[0].submitted_at + NODE_RUNNING_AFTER if self._unmarked_nodes else float("inf")

    def _mark_nodes_running(self) -> bool:
        """Show that nodes run whose bodies take long enough to be seen."""
        running = {execution for pool in self._pools for execution in pool.running.values()}
        running -= {outcome.execution for outcome in self._buffer.all}
        self._store.mark_nodes_running([execution.claim for execution in self._unmarked_nodes if execution in running])
        self._unmarked_nodes.clear()
        return True

    def _check_stop_request(self) -> bool:
        """Ask the worker's own row whether it is to stop: it was told that, perhaps by somebody who must not say so."""
        self._check_stop_at, self._stop_checked_at = float("inf"), time.monotonic()
        if self._store.is_asked_to_stop():
            self.dismiss()
        return True

    def _poll(self) -> bool:
        if self._poller.look().is_stop_requested:
            self.dismiss()
        return True

    def _tick(self) -> Tick:
        if not self._is_holding and not any(pool.has_work for pool in self._pools):
            return self._writer.beat()
        return self._writer.write(is_beat_due=time.monotonic() >= self._next_heartbeat)

    def _apply(self, tick: Tick) -> None:
        """Do in memory what has been committed: forget, begin, tell."""
        self._ticked_at = time.monotonic()
        ended = tick.stored
        self._buffer.remove(ended)
        self._buffer.postpone(tick.blocked)
        if tick.beat:
            # A beat that had to wait is as old as the tick is long.
            self._next_heartbeat = tick.began + self._config.options.recovery.beat_interval
            if self._started_registry is not None:
                self._started_registry.record_heartbeat()
        self._apply_claims(tick)
        self._releaser.put([*(outcome.claim.limit_key for outcome in ended), *tick.limit_keys])
        self._poller.is_asked = self._poller.is_asked or tick.doubted  # what was handed back can be claimed anew
        if tick.stored or tick.claimed or tick.handed_back:
            # Who is to leave once nothing is due has to look after the last thing that it did.
            self._poller.is_asked = self._poller.is_asked or self._config.until is Until.DRAINED
        if tick.claimed:
            self._budget.claimed += tick.claimed
            self._poll_interval.record_claim()
        for pool, started in tick.started:
            self._writer.pass_turn(pool, len(started), is_cooled=pool in tick.cooled)
            pool.start_ahead.adapt()
            if pool.is_partial:
                pool.prefer_deep(started)
            executions = list(map(self._new_execution, self._still_claimed(started, tick)))
            pool.submit(executions)
            self._unmarked_nodes += [execution for execution in executions if execution.claim.workflow_id is not None]
        self._poll_interval.poll_by(self._store.selector.unblocks_at)
        self._delete_unretained(ended)
        self._report(ended)
        if tick.is_dismissed:
            self.dismiss()

    def _apply_claims(self, tick: Tick) -> None:
        for pool in tick.cooled:
            knows_not_all = pool.has_unlisted
            pool.mark_empty()
            self._poller.is_asked = self._poller.is_asked or (knows_not_all and not pool.has_work)
        for pool, kept in tick.handed_back:
            self._budget.claimed -= len(pool.withdrawn) - len(kept)
            pool.withdrawn[:] = kept
        for pool, prefetched in tick.prefetched:
            if len(prefetched) > len(pool.prefetched):
                pool.progressed_at = time.monotonic()
            pool.prefetched.clear()
            pool.prefetched.extend(prefetched)
        self._hand_back_at = time.monotonic() + HAND_BACK_INTERVAL if self._has_to_hand_back else 0.0

    def _report(self, ended: Sequence[ExecutionResult]) -> None:
        for outcome in ended:
            self._release_slot(outcome.execution)
            if outcome.completion.again_in is not None:
                self._poll_interval.poll_by(time.monotonic() + outcome.completion.again_in)
            outcome.log()
            if self._started_registry is None and outcome.is_final and outcome.exception is not None:
                recent_exceptions.keep(
                    outcome.execution.task_id, outcome.exception
                )  # its handle may be in this process
        for queue_name in self._store.selector.notify_on_release({outcome.claim.queue_name for outcome in ended}):
            notify_slot_freed_after_commit(self._config.database, queue_name)
        self._listener.publish_completed(outcome.execution.task_id for outcome in ended if outcome.is_final)
        self._signals.enqueue_results(ended)

    def _delete_unretained(self, ended: Sequence[ExecutionResult]) -> None:
        """Delete what is kept for no time at all. Whatever keeps it from going is not to undo its end."""
        try:
            self._store.delete_unretained(ended)
        except Exception as error:
            if lacks_privilege(error):
                self._on_privilege_lost(error)
            else:
                logger.exception("tasks that are kept for no time stay for the reaper")

    def _new_execution(self, claim: ClaimedTask) -> Execution:
        time_limit = self._config.task_timeout if claim.timeout is None else claim.timeout
        place = None if self._started_registry is None else self._started_registry.acquire()
        return Execution(claim, self._config.options, self._runner, time_limit, slot=place)

    def _still_claimed(self, started: list[ClaimedTask], tick: Tick) -> list[ClaimedTask]:
        """Those that may begin: after a long pause (a stopped process, say) only what is still this worker's."""
        if not started or time.monotonic() - tick.began < CLAIM_CONFIRMED_FOR:
            return started
        self._next_heartbeat = time.monotonic()  # they are as old in the table as the tick is long
        mine = self._retry(lambda: self._store.still_mine(started))
        if mine is None:
            self._writer.doubt()
        return [claim for claim in started if (claim.task_id, claim.claim) in (mine or ())]

    def _recover_held(self) -> None:
        """Put back what has not ended, as after a crash. A body that a stop has cut short ends first.

        One that can't be stopped keeps its task: a reaper finds that once the process has ended.
        """
        still: set[Execution] = set()
        if self._budget.stop_by is not None:
            ended, still = stop_bodies(
                self._pools, self._inbox, 1.0 if self._is_aborted else self._config.timeout_grace
            )
            for outcome in ended:
                is_cut_short = outcome.execution.stop_reason is TaskRevoked and outcome.completion.error is not None
                if not is_cut_short or outcome.is_stored:
                    self._on_result(outcome)
            if self._buffer and (tick := self._retry(self._tick)) is not None:
                self._apply(tick)
        self._retry(partial(self._put_back, [execution.claim for execution in still]))

    def _hand_back_not_started(self) -> bool:
        """Hand back what has not begun, also where another transaction has locked its workflow: that is no crash."""
        if self._writer.in_doubt or any(pool.withdrawn for pool in self._pools):
            with self._store.transaction():
                self._store.hand_back_unknown(self._writer.known(), at_last=True)
        return True

    def _put_back(self, still: Sequence[ClaimedTask]) -> bool:
        self._hand_back_not_started()
        count = self._store.recover_held(still, is_stopped=self._budget.stop_by is not None)
        logger.warning("worker gave up id=%s tasks=%d: put back as if it had crashed", self._runner.worker_id, count)
        return True
