"""The database access of one runner: every statement on the queue's tables."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from django.db import Error, OperationalError, connections, transaction

from ..core.output import OutputBuffer
from ..core.platform import resident_bytes
from ..core.queue_policy import POLICY_COLUMNS
from ..core.results import OperationalCode, TaskError
from ..core.serialization import clean_text, dumps
from ..core.status import AttemptOutcome, TaskStatus
from ..core.version import __version__
from ..db import postgres
from ..db.connection import without_waiting
from ..db.errors import is_blocked, primary_message, row_by_row
from ..db.notifications import ANY_QUEUE, ping_after_commit, wake_after_commit
from ..models import Heartbeat, Queue, Task, TaskOutput, Worker, retention
from ..models.attempt import AttemptError
from ..models.claim.complete_and_claim import CompleteAndClaim, compile_for
from ..models.claim.cursors import KeptCursors
from ..models.claims import ClaimedTask, ClaimRef, Completion, WorkerInfo
from ..models.queue_limiter import Allowance, QueueLimiter, refund_tokens, store_tokens
from ..models.queue_scan import QueueScan, ScanResult
from ..models.transitions import TaskQuerySet
from ..models.worker import WorkerQuerySet, WorkerRequest
from ..reaper import prune
from ..reaper.crashed import TimeoutPolicy, recover_all
from ..workflows import gateway
from ..workflows.gateway import EngineGateway, NewTasks
from . import signal_dispatcher
from .code_version import code_version
from .config import Until, WorkerConfig
from .execution import Execution, ExecutionResult
from .queue_selector import QueueSelector
from .slot_pool import SlotPool

logger = logging.getLogger("horsies_django.worker")

#: Seconds for which policies of queues are not read again; a busy worker polls more often.
POLICY_TTL: Final = 0.2

#: Seconds for which a worker skips locked rows after it has waited for one in vain, or has skipped one.
SKIP_LOCKED_FOR: Final = 60.0

#: Minimum tasks of a queue that are tried one by one after a claim has failed.
MIN_ISOLATED: Final = 20


class HeldClaim(NamedTuple):
    """A claim of this worker as the table knows it."""

    task_id: UUID
    claim: int
    workflow_id: UUID | None
    start_deadline: float | None = None


C = TypeVar("C", ClaimedTask, HeldClaim)
RefT = TypeVar("RefT", bound=ClaimRef)


class WorkerStore:
    """Reads and writes for one runner, on the producer's connection. It keeps no tasks in memory and does not block."""

    def __init__(self, config: WorkerConfig, runner: WorkerInfo) -> None:
        self._config = config
        self._runner = runner
        self._claims: dict[tuple[bool, bool], CompleteAndClaim] = {}
        self._cursors = {is_async: KeptCursors(config.database) for is_async in (False, True)}
        self._scan: QueueScan | None = None
        self._gateway = EngineGateway(config.database)
        self.selector = QueueSelector(config)
        self._policies_expire_at = float("-inf")
        self._skips_locked_until = float("-inf")

    def register(self, *, is_quiet: bool = False) -> None:
        """Write the worker's row."""
        runner, facts = self._runner, self._config.row_values | {"version": __version__, "memory": resident_bytes()}
        facts["code_version"] = code_version(self._config.options)
        name, pid = self._config.name, runner.pid or 0
        self.workers.register(runner.worker_id, name, runner.hostname, pid, is_quiet=is_quiet, **facts)

    def ping(self) -> bool:
        """Send a notification to this worker's own listener, which learns from it that notifications arrive."""
        ping_after_commit(self._config.database, self._runner.worker_id)
        return True

    def leave(self) -> bool:
        """Remove the worker's row."""
        retention.refresh_queue_settings(self._config.database, {})
        self.workers.deregister(self._runner.worker_id)
        return True

    def scan(self, pools: Sequence[SlotPool]) -> ScanResult:
        """Read, in one statement and without a lock, what there is to do; then read policies of queues if need be."""
        if self._scan is None:
            kinds = [pool.is_async for pool in pools]
            self._scan = QueueScan(self._config.database, self._runner.worker_id, kinds)
        while (result := self._scan.run()) is None:
            self.register()  # the row was removed
        if self._config.until is Until.STOPPED:  # a drain ends when claims find no tasks: it keeps no cursors
            for pool, queues in zip(pools, result.queues, strict=True):
                self._cursors[pool.is_async].review(queues)
        self._refresh_policies(has_rules=result.has_rules)
        return result

    def reset_policies(self) -> None:
        """Forget the policies of queues, and which queues refuse: some of that has changed."""
        self.selector.reset()
        self._policies_expire_at = float("-inf")

    @property
    def are_policies_stale(self) -> bool:
        """Whether the policies have to be read again."""
        return self._policies_expire_at == float("-inf")

    def _refresh_policies(self, *, has_rules: bool) -> None:
        """Read the policies of queues whose rows have any, unless they were read just now."""
        if has_rules and time.monotonic() < self._policies_expire_at:
            return
        self._policies_expire_at = time.monotonic() + POLICY_TTL
        rows = (
            Queue.objects.using(self._config.database).with_rules().values("name", *POLICY_COLUMNS) if has_rules else ()
        )
        is_new = self.selector.set_policies({row.pop("name"): row for row in rows})
        if is_new and retention.refresh_queue_settings(self._config.database, self.selector.retention):
            self._claims.clear()

    def heartbeat(self, *, is_quiet: bool, is_holding: bool) -> WorkerRequest:
        """Record that the worker is alive and, if it ``is_holding`` tasks, that it still holds them.

        Return what its row asks of the worker. If the row was deleted, write it again, with whether it ``is_quiet``.
        Tasks that this worker does not know were handed back just now, in the same transaction.
        """
        runner = self._runner
        request = self.workers.beat(runner.worker_id, resident_bytes())
        if request is WorkerRequest.GONE:
            self.register(is_quiet=is_quiet)
        self.ping()
        if is_holding:
            beats = Heartbeat.objects.using(self._config.database)
            beats.beat(self._held, runner.worker_id, runner.hostname, runner.pid or 0)
        return request

    def running_claims(self) -> set[tuple[UUID, int]]:
        """Return which tasks this worker runs by the table, and under which claims."""
        return set(self._held.filter(status=TaskStatus.RUNNING).values_list("pk", "claim"))

    @property
    def skips_locked(self) -> bool:
        """Whether to skip rows that other transactions have locked. To look for them costs statements."""
        return time.monotonic() < self._skips_locked_until

    def skip_locked(self) -> None:
        """Skip locked rows for a while: a statement has waited too long for one."""
        self._skips_locked_until = time.monotonic() + SKIP_LOCKED_FOR

    def locked_ids(
        self, tasks: Sequence[ClaimedTask | HeldClaim], status: TaskStatus = TaskStatus.RUNNING
    ) -> set[UUID]:
        """Lock the tasks that this worker still holds; return the ids of those that another transaction has locked."""
        held = self.tasks.under_claims(tasks, status, self._runner.worker_id)
        with self.transaction():
            return set(held.values_list("pk", flat=True)) - set(held.lock().values_list("pk", flat=True))

    def _skipped(self, tasks: Sequence[ClaimedTask | HeldClaim], status: TaskStatus) -> set[UUID]:
        """Return the ids of tasks to leave out because another transaction has locked them."""
        locked = self.locked_ids(tasks, status) if tasks and self.skips_locked else set()
        if locked:
            self.skip_locked()
        return locked

    def note_progress(self, executions: Iterable[Execution]) -> dict[Execution, str]:
        """Store the progress that executions have noted since it was last stored; return what was stored."""
        notes = {
            execution: note
            for execution in executions
            if (note := execution.progress) is not None and note != execution.stored_progress
        }
        if not notes:
            return {}
        written = self.tasks.store_progress(
            {execution.claimed: note for execution, note in notes.items()}, self._runner.worker_id
        )
        return {execution: note for execution, note in notes.items() if execution.task_id in written}

    def save_output(self, executions: Iterable[Execution]) -> dict[OutputBuffer, int]:
        """Store what executions have written and logged; return the number of the last chunk of each output."""
        outputs = ((execution.claimed, output) for execution in executions if (output := execution.unsaved_output))
        return TaskOutput.objects.using(self._config.database).save_unsaved(outputs)

    def save_output_apart(self, executions: Sequence[Execution]) -> None:
        """Store the same outside of a transaction, and drop what the database refuses: results do not wait for it.

        Stores nothing for now if another transaction is in the way.
        """

        def save(batch: Sequence[Execution]) -> None:
            for output, number in self.save_output(batch).items():
                output.mark_saved(number)

        def drop(execution: Execution, error: Exception) -> None:
            logger.error("output refused and lost id=%s error=%s", execution.task_id, primary_message(error))
            if (output := execution.unsaved_output) is not None:
                output.mark_saved(output.unsaved()[-1].number)

        try:
            with without_waiting(self._config.database):
                row_by_row(executions, save, drop)
        except Error as error:
            if not is_blocked(error):
                raise

    def save(self, ends: Sequence[Completion]) -> None:
        """Store how tasks ended. A task whose claim was lost does not change."""
        if not ends:
            return
        ends, tasks, runner = latest(ends), self.tasks, self._runner
        if completed := [end for end in ends if end.is_success]:
            tasks.complete(completed, runner)
        if put_off := [end for end in ends if end.error is None and end.delay is not None]:
            self._put_off(put_off)
        retried = [end for end in ends if end.error is not None and end.delay is not None]
        if charged := [end for end in retried if end.is_charged]:
            tasks.retry_later(charged, runner)
        if uncharged := [end for end in retried if not end.is_charged]:
            tasks.retry_later(uncharged, runner, AttemptOutcome.WORKER_FAILURE, is_charged=False)
        if failed := [end for end in ends if end.error is not None and end.delay is None]:
            tasks.fail(failed, runner)

    def _put_off(self, ends: Sequence[Completion]) -> None:
        tasks, worker_id = self.tasks, self._runner.worker_id
        if snoozed := [end for end in ends if end.unknown_to is None and end.restart is None]:
            tasks.snooze(snoozed, worker_id)
        if handed_back := [end for end in ends if end.unknown_to is not None]:
            tasks.release_unknown(handed_back, worker_id)
        for end in ends:
            if end.restart is not None:
                tasks.restart(end, end.restart, worker_id)

    def locked_results(self, results: Sequence[ExecutionResult]) -> list[ExecutionResult]:
        """Lock the workflows of these tasks; return results whose workflow or task another transaction has locked."""
        tasks = [result.claimed for result in results]
        blocked, skipped = self._blocked(tasks), self._skipped(tasks, TaskStatus.RUNNING)
        if not (blocked or skipped):
            return []
        return [
            result for result in results if result.claimed.workflow_id in blocked or result.claimed.task_id in skipped
        ]

    def _blocked(self, tasks: Sequence[ClaimedTask | HeldClaim]) -> set[UUID]:
        roots = {task.workflow_id for task in tasks if task.workflow_id is not None}
        return self._gateway.lock_unless_locked(roots) if roots else set()

    def advance(self, results: Sequence[ExecutionResult]) -> NewTasks:
        """Advance the workflows of nodes whose tasks have ended; return the tasks that follow.

        Raises :class:`~..workflows.gateway.AdvanceFailed`.
        """
        has_pending = any(result.completion.delay is not None for result in results)
        return self._gateway.advance_locked([result.execution.task_id for result in results], has_pending=has_pending)

    def delete_unretained(self, results: Sequence[ExecutionResult]) -> None:
        """Delete tasks with a retention of zero. If signals have receivers, the reaper deletes them later."""
        ended = [result for result in results if result.is_final]
        completed = (result.claimed for result in ended if result.completion.is_success)
        successes = ((task.backend, task.queue_name, task.retention) for task in completed)
        if retention.deletes_at_once(successes, self._config.database):
            silent = [
                result.claimed.task_id
                for result in ended
                if not signal_dispatcher.has_finished_receivers(result.claimed)
            ]
            with self.transaction():
                prune.delete(prune.past_retention(self.tasks.filter(pk__in=silent)))

    def save_one_by_one(self, ends: Sequence[Completion]) -> set[UUID]:
        """Store results one by one after they could not be stored together.

        A result that the database refuses fails its own task only. If a workflow can't advance, the result is stored
        all the same. Return the ids of tasks whose failure the database refuses, too: they are still running.
        """
        return set().union(*row_by_row(ends, self._save_and_advance, self._save_refused))

    def _save_refused(self, end: Completion, error: Exception) -> set[UUID]:
        held = self.tasks.under_claims([end], TaskStatus.RUNNING, self._runner.worker_id)

        def set_aside(_: Completion, again: Exception) -> set[UUID]:
            return set() if held.set_aside(end.task_id, again) else {end.task_id}

        return set().union(*row_by_row([_refused(end, error)], self._save_and_advance, set_aside))

    def _save_and_advance(self, ends: Sequence[Completion]) -> set[UUID]:
        tasks = self.tasks.filter(pk__in=[end.task_id for end in ends])
        with self.transaction(), gateway.lock_then_advance(tasks):
            self.save(ends)
        return set()

    def fail_unclaimable(self, pools: Sequence[SlotPool]) -> int:
        """Fail the tasks that can't be claimed, among the next ones of these pools; return how many there were."""
        count = 0
        for pool in pools:
            claim = partial(self._try_to_claim, is_async=pool.is_async)
            for queue in pool.queues:
                next_up = self.tasks.next_up(is_async=pool.is_async).filter(queue_name=queue)
                keys = list(next_up.values_list("pk", flat=True)[: max(MIN_ISOLATED, 2 * pool.room)])
                count += sum(row_by_row(keys, claim, self.tasks.pending().set_aside))
        return count

    def _try_to_claim(self, keys: Sequence[UUID], *, is_async: bool) -> int:
        """Claim these tasks in a transaction that is rolled back."""
        with self.transaction():
            self.tasks.filter(pk__in=keys).claim(self._runner.worker_id, start=len(keys), is_async=is_async)
            transaction.set_rollback(True, using=self._config.database)
        return 0

    def start(self, tasks: Sequence[ClaimedTask]) -> list[ClaimedTask]:
        """Start prefetched tasks; return those that this worker still holds."""
        tasks = latest(tasks)
        if skipped := self._skipped(tasks, TaskStatus.CLAIMED):  # handed back with a heartbeat, as unknown ones
            tasks = [task for task in tasks if task.task_id not in skipped]
        may = self.tasks.start(tasks, self._runner.worker_id)
        nodes = [task.task_id for task in tasks if task.task_id not in may and task.workflow_id is not None]
        gateway.advance_unless_locked(self._config.database, nodes)
        return [task for task in tasks if task.task_id in may]

    def complete_and_claim(
        self, pool: SlotPool, ends: Sequence[Completion], room: int, *, starts: bool = True
    ) -> list[ClaimedTask]:
        """Store successes, then claim tasks for a pool and, if it ``starts`` them, start them.

        Without limits and without an order of queues that is one statement, if the database supports it. Otherwise each
        share of the room is a claim, in a transaction that holds the locks of limited queues.
        """
        claim = self._claim_for(pool.is_async, starts=starts)
        if self.selector.is_plain or not room:
            return claim.run(ends, room, pool.queues)
        if ends:  # first: ended tasks free places for those that start, and this waits for no lock
            claim.run(ends, 0, ())
        queues = self.selector.unblocked(pool.queues)
        if not queues:
            return []
        limited = self.selector.limited(queues)
        allowances: dict[str, Allowance] = {}
        tasks: list[ClaimedTask] = []
        try:
            with self.transaction():
                allowances = self._limiter.lock_allowances(limited)
                refusing = set(limited).difference(allowances)
                for names, share in self.selector.shares(pool.is_async, queues, room):
                    asked = (name for name in names if name in allowances)
                    caps = {name: cap for name in asked if (cap := allowances[name].available) is not None}
                    names = [name for name in names if name not in refusing and caps.get(name, 1)]
                    count = min(share, room - len(tasks))
                    taken = claim.run((), count, names, caps) if names and count else []
                    if len(taken) < count:
                        refusing.update(names)
                    for name, number in Counter(task.queue_name for task in taken).items():
                        if name in allowances:
                            allowances[name].take(number)
                    tasks += taken
                store_tokens(self._config.database, allowances)
        except OperationalError as error:
            if allowances or not postgres.is_lock_timeout(error):
                raise
        self.selector.record_result(pool.is_async, limited, allowances)
        return tasks

    def _claim_for(self, is_async: bool, *, starts: bool) -> CompleteAndClaim:
        if (is_async, starts) not in self._claims:
            self._claims[is_async, starts] = compile_for(
                self.tasks, self._runner, is_async=is_async, starts=starts, cursors=self._cursors[is_async]
            )
        return self._claims[is_async, starts]

    @cached_property
    def _limiter(self) -> QueueLimiter:
        return QueueLimiter(self.tasks, self.selector.policy_of)

    def release(self, tasks: Sequence[C], status: TaskStatus, *, at_last: bool = False) -> list[C]:
        """Put tasks that have not started back into their queues, CLAIMED ones or those that are marked as RUNNING.

        Return those that another transaction has locked, or whose workflow it has. That transaction may pause or cancel
        the workflow, does not see the tasks that go back, and would leave them to run. ``at_last`` they go back all the
        same, which is better than to recover them as crashed.
        """
        blocked = self._blocked(tasks)
        skipped = set() if at_last else self._skipped(tasks, status)
        free = [task for task in tasks if task.workflow_id not in blocked and task.task_id not in skipped]
        gone = tasks if at_last else free
        rows = self.tasks
        if self.selector.has_rates:
            refund_tokens(rows.under_claims(gone, status, self._runner.worker_id))
        (rows.revert_start if status is TaskStatus.RUNNING else rows.release)(gone, self._runner.worker_id)
        dated = {task.task_id: task.start_deadline for task in free if task.start_deadline is not None}
        if late := [task_id for task_id, start_deadline in dated.items() if time.monotonic() >= start_deadline]:
            rows.filter(pk__in=late).expire()
        gateway.advance_locked(self._config.database, [task.task_id for task in free if task.workflow_id is not None])
        wake_after_commit(self._config.database, ANY_QUEUE)
        if at_last:
            return []
        return [task for task in tasks if task.workflow_id in blocked or task.task_id in skipped]

    def recover_held(self, still: Collection[ClaimedTask] = (), *, is_stopped: bool = False) -> int:
        """Recover the tasks that this worker holds as after a crash, except those that are ``still`` running.

        If it ``is_stopped``, that costs no retry.
        """
        held = self.tasks.held_by(self._runner.worker_id).exclude(pk__in=[task.task_id for task in still])
        return recover_all(held, TimeoutPolicy(self._config.task_timeout, is_stopped))

    def hand_back_unknown(self, tasks: Collection[ClaimedTask], *, at_last: bool = False) -> None:
        """Hand back tasks that this worker holds by the table and does not know: the answer to a commit was lost."""
        mine = {(task.task_id, task.claim) for task in tasks}
        held: Any = self._held.values_list("status", "pk", "claim", "workflow_id")
        lost = [(status, HeldClaim(*row)) for status, *row in held if tuple(row[:2]) not in mine]
        for status in (TaskStatus.RUNNING, TaskStatus.CLAIMED):
            if unknown := [task for lost_status, task in lost if lost_status == status]:
                self.release(unknown, status, at_last=at_last)

    def transaction(self) -> transaction.Atomic:
        """Return the transaction of a tick."""
        return transaction.atomic(using=self._config.database)

    def pipeline(self) -> AbstractContextManager[None]:
        """Pipeline the statements about nodes, if the database can: round trips may be slow."""
        return postgres.pipeline(connections[self._config.database])

    @property
    def tasks(self) -> TaskQuerySet:
        """All tasks."""
        return Task.objects.using(self._config.database)

    @property
    def _held(self) -> TaskQuerySet:
        """The tasks that this worker holds by the table."""
        return self.tasks.held_by(self._runner.worker_id)

    @property
    def workers(self) -> WorkerQuerySet:
        """All workers."""
        return Worker.objects.using(self._config.database)


def latest(refs: Sequence[RefT]) -> list[RefT]:
    """Return those of the latest claim of each task. A task that was taken away and claimed again appears twice."""
    return list({ref.task_id: ref for ref in sorted(refs, key=attrgetter("claim"))}.values())


def _refused(end: Completion, error: Exception) -> Completion:
    message = clean_text(f"The database refused the result: {primary_message(error)}")
    code = OperationalCode.WORKER_SERIALIZATION_ERROR
    result = dumps({"err": TaskError(error_code=code, message=message).as_json()})
    return Completion(end.task_id, end.claim, result, AttemptError(code, message), began=end.began)
