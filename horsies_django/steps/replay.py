"""``Replay``: what a run of a task has recorded, and which of it the body has met again.

Each run starts the body from the top. A step that an earlier run has kept gives its value; the first that is not known
runs. In a function, a step that is not known while kept ones are unmet means that the code has changed. In a coroutine
there is no order, because steps may be gathered; neither in other threads of a function.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NoReturn, Protocol
from uuid import UUID

from django.db import Error, connections

from ..core.current_task import open_step
from ..core.exceptions import (
    HorsiesError,
    StepFailed,
    StepMismatch,
    TaskInterrupt,
    TaskRevoked,
    TaskSuspended,
    WaitTimeout,
)
from ..core.options import Options
from ..core.results import RetrievalCode, TaskError, TaskResult
from ..core.retry import RetryPolicy
from ..core.serialization import check_size, clean_text, decode, dumps, encode
from ..core.status import StepKind, StepStatus
from ..db.errors import is_outage
from ..models.claims import FOREVER, NAME_LENGTH, ClaimedTask, StepRecord

logger = logging.getLogger("horsies_django.worker")

#: Maximum records of a task.
MAX_RECORDS: Final = 10_000

#: Seconds up to which a sleep, and a step's wait for its next try, keep the slot.
SHORT_SLEEP: Final = 1.0
SHORT_BACKOFF: Final = 5.0

#: How the names of records begin that are not those of steps.
_RESERVED: Final = ("event:", "patch:", "workflow:", "sleep")


class StepRun(Protocol):
    """The run of a task, as its replay uses it."""

    claimed: ClaimedTask
    options: Options
    is_atomic: bool
    progress: str | None
    decided: BaseException | None  # the end of the run, whatever the body returns

    @property
    def task_id(self) -> UUID:
        """The id of the task."""

    @property
    def database(self) -> str:
        """The alias of the queue's database."""

    @property
    def is_typed(self) -> bool:
        """Whether stored values carry type tags."""

    def error_of(self, raised: Exception) -> TaskError[Any]:
        """Return the error that the task would have if its body raised this."""

    @property
    def replay(self) -> Replay:
        """What the run has recorded."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The task's metadata."""

    def now(self) -> datetime:
        """Return the time by the clock of the database."""

    def lock_on_sqlite(self) -> None:
        """Begin to write: SQLite can't turn a reader into the writer once another connection has written."""

    def request_stop(self, reason: type[TaskInterrupt]) -> None:
        """Ask the body to stop."""

    def raise_if_stopping(self) -> None:
        """Raise the reason to stop, if there is one."""

    def has_time(self, seconds: float) -> bool:
        """Whether the body may go on for so long: its worker stays, and the time limit is not reached before."""

    def is_in_body(self) -> bool:
        """Whether the caller is in the body's own thread or asyncio task."""

    def read_steps(self) -> list[StepRecord]:
        """Return the records of earlier runs."""

    def write_step(self, record: StepRecord) -> bool:
        """Write a record; False if the task is no longer this worker's, or if the record must stay."""


class Replay:
    """The records of one run."""

    def __init__(self, run: StepRun) -> None:
        self.run = run
        self._numbers: Counter[str] = Counter()
        self._used_outside: set[str] = set()
        self._records: dict[tuple[str, int], StepRecord] | None = None
        self._unmet: dict[tuple[str, int], StepRecord] = {}
        self._first_events: dict[str, int] = {}
        self._last_position = 0  # of earlier runs
        self._calls = 0
        self._call_of: dict[tuple[str, int], int] = {}
        self._children: set[asyncio.Task[Any]] = set()
        self._left: list[tuple[StepRecord, bool]] = []
        self.open_loop: str | None = None  # what the body is in between two turns

    # At the call.

    def begin(self, kind: StepKind, name: str, *, is_wait: bool = False) -> tuple[str, int]:
        """Return the key of a step that the body asks for. A checkpoint.

        Raises ValueError for a bad name, and RuntimeError where a step is not allowed.
        """
        run = self.run
        run.raise_if_stopping()
        if run.decided is not None:
            raise run.decided
        _check_name(kind, name)
        if (outer := open_step() or self.open_loop) is not None:
            raise RuntimeError(f"{name!r} was called inside {outer}; allowed: steps and waits after one another.")
        if run.is_atomic or _has_open_transaction(run.database):
            raise RuntimeError(f"{name!r} was called inside a transaction; allowed: steps and waits outside of one.")
        is_outside = not run.is_in_body()
        if is_outside and is_wait:
            raise RuntimeError(
                f"{name!r} was called in another thread or asyncio task; allowed: waits in the body's own."
            )
        if name in self._used_outside or (is_outside and name in self._numbers):
            raise RuntimeError(
                f"The name {name!r} was used before; allowed: each name once, if one of its steps is not in the body's "
                "own thread or asyncio task, because their order may change."
            )
        if is_outside:
            self._used_outside.add(name)
        self._numbers[name] += 1
        key = name, self._numbers[name]
        self._calls = self._call_of[key] = self._calls + 1
        return key

    def next_number(self, name: str) -> int:
        """Return the number that the next step of this name gets."""
        return self._numbers[name] + 1

    # Asyncio tasks.

    def enter_child(self) -> None:
        """Note the caller's asyncio task, unless it is the body's own, for :meth:`end_children`."""
        if not self.run.is_in_body() and (task := asyncio.current_task()) is not None:
            self._children.add(task)

    async def end_children(self) -> None:
        """Cancel the asyncio tasks that have taken steps and still run, and wait for them: the body has ended."""
        while running := [task for task in self._children if not task.done()]:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=1.0)  # a call in a thread ends first, and takes the cancel away

    # Afterwards. These make queries.

    @property
    def records(self) -> dict[tuple[str, int], StepRecord]:
        """The records by name and number, without failures that this run repeats."""
        if self._records is None:
            rows = self.run.read_steps() if self.run.claimed.claim > 1 else []
            self._records = {(row.name, row.number): row for row in self._counting(rows)}
            self._unmet = {key: row for key, row in self._records.items() if _must_be_met(row)}
            self._last_position = max((row.position or 0 for row in rows), default=0)
            for row in rows:
                if row.kind == StepKind.EVENT:
                    self._first_events[row.name] = min(row.number, self._first_events.get(row.name, row.number))
        return self._records

    def _counting(self, rows: Sequence[StepRecord]) -> Iterator[StepRecord]:
        """Leave out failures, and the tries of a step, of an earlier attempt after which the body asked for nothing."""
        last = max((row.position or 0 for row in rows if row.status != StepStatus.FAILED), default=0)
        is_last_open = any(row.kind != StepKind.STEP and row.position is None and row.attempt for row in rows)
        for row in rows:
            is_unsuccessful = row.kind == StepKind.STEP and row.status != StepStatus.COMPLETED
            is_trailing = row.status == StepStatus.WAITING or (not is_last_open and (row.position or 0) > last)
            if not (is_unsuccessful and is_trailing and row.attempt != self.run.claimed.attempt):
                yield row

    def find(self, key: tuple[str, int]) -> StepRecord | None:
        """Return the record of this step, which counts as met from now on.

        Raises StepMismatch if there is none although the body has not met others, HorsiesError for one too many.
        """
        while self._left:
            self._keep_left(*self._left.pop())
        record = self.records.get(key)
        self._unmet.pop(key, None)
        has_order = not self.run.claimed.is_async and key[0] not in self._used_outside
        if record is None and has_order and (unmet := self.first_unmet()) is not None:
            asked = StepRecord(*key, "", "").label
            self.decide(
                StepMismatch(
                    f"The body asks for {asked!r}, which was not recorded, before {unmet.label!r}, which was: the code "
                    "of the task has changed."
                )
            )
        if record is None and len(self.records) >= MAX_RECORDS:
            raise HorsiesError(f"The task has {MAX_RECORDS:,} records; allowed: no more. Use context.restart().")
        return record

    def first_unmet(self) -> StepRecord | None:
        """Return the first record that the body has not met; None if it has met all."""
        self.records  # noqa: B018  # reads them
        return min(self._unmet.values(), key=lambda row: row.position or self._last_position + 1, default=None)

    def decide(self, decision: BaseException) -> NoReturn:
        """End the run: from now on each call raises this, and what the body returns does not count."""
        self.run.decided = decision
        raise decision

    @contextmanager
    def outages_decide(self) -> Iterator[None]:
        """Let an outage during the block, which the body has not caused, end the run: the task runs again."""
        try:
            yield
        except Error as error:
            if not is_outage(error):
                raise
            self.decide(error)

    def write(self, record: StepRecord) -> bool:
        """Write a record; False if it is kept already, or if the task is no longer this worker's."""
        key = record.name, record.number
        self.records  # noqa: B018  # reads the last position
        if record.status != StepStatus.WAITING:
            if record.status == StepStatus.FAILED:
                self._calls = self._call_of[key] = self._calls + 1  # what was called before does not follow from it
            record.position = self._last_position + self._call_of.get(key, self._calls)
        with self.outages_decide():
            is_written = self.run.write_step(record)
        if is_written:
            self.records[key] = record
        return is_written

    def keep(self, record: StepRecord) -> None:
        """Write a record that nobody else writes. Raises TaskRevoked if the task is no longer this worker's."""
        if not self.write(record):
            self.run.request_stop(TaskRevoked)
            self.run.raise_if_stopping()

    def encode(self, value: Any, record: StepRecord) -> str:
        """Return the JSON of a step's value. Raises TypeError or ValueError for a value that can't be stored."""
        where = f"the value of the step {record.label!r}"
        text = dumps({"ok": encode(value, typed=self.run.is_typed, where=where)})
        check_size(text, self.run.options.max_payload_bytes, where)
        return text

    def value_of(self, record: StepRecord) -> Any:
        """Return the value of a record as any run returns it. Raises StepFailed for a failure."""
        stored = json.loads(record.result or "{}")
        if record.status == StepStatus.FAILED:
            raise _failure(record, TaskError.from_json(stored["err"]))
        return decode(stored.get("ok"), typed=self.run.is_typed)

    def leave(self, loop: StepRecord, *, is_whole: bool) -> None:
        """Note that the body has left a loop before its end; ``is_whole`` if no turn has failed.

        A run that ends now goes on with the loop. But what the body asks for next follows the loop in each run.
        """
        if self.run.is_in_body() and not self.run.claimed.is_async:
            self._left.append((loop, is_whole))

    def _keep_left(self, loop: StepRecord, is_whole: bool) -> None:
        """Record a loop that the body has left: one with a failure, or left by one, goes on in the next run."""
        if is_whole and sys.exception() is None:
            self.keep(replace(loop, status=StepStatus.COMPLETED))
        elif (loop.name, loop.number) not in self.records:
            self.keep(loop)

    # Steps.

    def open_step(self, key: tuple[str, int]) -> StepRecord:
        """Return the record of a step: one that has ended, or one to try."""
        record = self.find(key) or StepRecord(*key, StepKind.STEP, StepStatus.WAITING, attempts=0)
        if record.status == StepStatus.WAITING:
            record.attempts += 1
        return record

    def complete(self, record: StepRecord, value: Any, seconds: float) -> None:
        """Keep the value of a step that has taken so many seconds."""
        result = self.encode(value, record)
        record.status, record.result, record.seconds = StepStatus.COMPLETED, result, seconds
        self.keep(record)

    def fail(self, record: StepRecord, error: Exception, policy: RetryPolicy | None) -> float:
        """Return the seconds to sleep before another try. Suspends the task for a long one.

        Raises StepFailed from ``error`` if no try is left.
        """
        self.run.raise_if_stopping()
        if self.run.decided is not None:
            raise self.run.decided
        if record.status == StepStatus.COMPLETED and is_outage(error):
            self.decide(error)  # whether its commit has succeeded is not known
        shown, tries = self.run.error_of(error), record.attempts
        record.status, record.position = StepStatus.WAITING, None
        if policy is not None and tries <= policy.max_retries and policy.covers(shown.error_code, error):
            delay = policy.delay(tries)
            if delay > SHORT_BACKOFF:
                record.due_in = delay
                self.keep(record)
                self.suspend(f"step:{record.name}", delay)
            record.attempts += 1
            return delay
        record.status, record.result = StepStatus.FAILED, dumps({"err": shown.as_json()})
        self.keep(record)
        raise _failure(record, shown) from error

    def suspend(self, waits_for: str | None, delay: float) -> NoReturn:
        """Give up the slot until ``waits_for`` comes, ``delay`` seconds at most."""
        self.decide(TaskSuspended(waits_for, delay))

    # Waits.

    def sleep_left(self, key: tuple[str, int], seconds: float) -> float:
        """Return the seconds that are left of a sleep; suspends the task for a long one."""
        record = self.find(key)
        if record is None:
            record = StepRecord(*key, StepKind.SLEEP, StepStatus.WAITING, due_in=seconds)
            if seconds > SHORT_SLEEP:
                self.keep(record)
        left = 0.0 if record.status == StepStatus.COMPLETED else record.due_in or 0.0
        if left > SHORT_SLEEP:
            self.suspend("sleep", left)
        return max(0.0, left)

    def end_sleep(self, key: tuple[str, int]) -> None:
        """Record that a sleep has ended."""
        record = self.records.get(key) or StepRecord(*key, StepKind.SLEEP, StepStatus.WAITING)
        if record.status == StepStatus.WAITING:
            record.status = StepStatus.COMPLETED
            self.keep(record)

    def wait_event(self, key: tuple[str, int], timeout: float | None) -> Any:
        """Return the payload of the event, suspend the task, or raise WaitTimeout."""
        name, number = key
        self.records  # noqa: B018  # reads the numbers of the events
        key = name, number + self._first_events.get(name, 1) - 1
        record = self.find(key) or self._await(StepRecord(*key, StepKind.EVENT, StepStatus.WAITING, due_in=timeout))
        if record.status == StepStatus.WAITING and record.due_in is not None and record.due_in <= 0.0:
            record = self._time_out(record, key)
        match record.status:
            case StepStatus.UNREAD:
                record.status = StepStatus.COMPLETED
                self.keep(record)
            case StepStatus.WAITING:
                self.suspend(name, FOREVER if record.due_in is None else record.due_in)
            case StepStatus.FAILED:
                raise WaitTimeout(f"No event {name.removeprefix('event:')!r} came in time.")
        return self.value_of(record)

    def _await(self, record: StepRecord) -> StepRecord:
        """Write that the task waits; return the record, or the event that has come meanwhile."""
        return record if self.write(record) else self._reread(record)

    def _time_out(self, record: StepRecord, key: tuple[str, int]) -> StepRecord:
        """Write that no event came in time; return the record, or the event that has come meanwhile."""
        late = StepRecord(*key, StepKind.EVENT, StepStatus.FAILED, attempts=record.attempts)
        late.result = dumps({"err": TaskError[None](error_code=RetrievalCode.WAIT_TIMEOUT).as_json()})
        return self._await(late)

    def _reread(self, record: StepRecord) -> StepRecord:
        """Return the record as another has written it. Raises TaskRevoked if nobody has."""
        self.run.raise_if_stopping()
        for row in self.run.read_steps():
            if (row.name, row.number) == (record.name, record.number) and row.status == StepStatus.UNREAD:
                self.records[row.name, row.number] = row
                return row
        self.run.request_stop(TaskRevoked)
        self.run.raise_if_stopping()
        return record

    def wait_for_end(
        self, key: tuple[str, int], watch_end: Callable[[], TaskResult[Any, Any] | None], timeout: float | None
    ) -> TaskResult[Any, Any]:
        """Return the result that ``watch_end()`` returns of a workflow; suspend the task if that is None."""
        record = self.find(key)
        if record is None or record.status == StepStatus.WAITING:
            ended = watch_end()
            if record is None:
                record = StepRecord(*key, StepKind.WAIT, StepStatus.WAITING, due_in=timeout)
            if ended is None and not (record.due_in is not None and record.due_in <= 0.0):
                if key not in self.records:
                    self.keep(record)
                self.suspend(key[0], FOREVER if record.due_in is None else record.due_in)
            message = f"{key[0]} did not end in time."
            late = TaskError[None](error_code=RetrievalCode.WAIT_TIMEOUT, message=message)
            result = TaskResult(err=late) if ended is None else ended
            record.status, record.result = StepStatus.COMPLETED, dumps(self._encode_result(result, key[0]))
            check_size(record.result, self.run.options.max_payload_bytes, f"the result of {key[0]}")
            self.keep(record)
        return self._decode_result(json.loads(record.result or "{}"))

    def _encode_result(self, result: TaskResult[Any, Any], where: str) -> dict[str, Any]:
        typed, value = self.run.is_typed, result.ok
        if result.is_err():
            error = result.err_value
            return {"err": replace(error, data=encode(error.data, typed=typed, where=where)).as_json()}
        if isinstance(value, dict) and any(isinstance(each, TaskResult) for each in value.values()):
            return {"ok": {name: self._encode_result(each, where) for name, each in value.items()}, "by_node": True}
        return {"ok": encode(value, typed=typed, where=where)}

    def _decode_result(self, stored: Mapping[str, Any]) -> TaskResult[Any, Any]:
        if "err" in stored:
            error = TaskError[Any].from_json(stored["err"])
            return TaskResult(err=replace(error, data=decode(error.data, typed=self.run.is_typed)))
        if "by_node" in stored:  # a workflow without an output
            return TaskResult(ok={name: self._decode_result(each) for name, each in stored["ok"].items()})
        return TaskResult(ok=decode(stored["ok"], typed=self.run.is_typed))

    # The rest.

    def is_patched(self, name: str) -> bool:
        """Whether the new code applies to this run."""
        key = f"patch:{name}", 1
        record = self.records.get(key)
        if record is None:
            is_new = self.first_unmet() is None
            record = StepRecord(*key, StepKind.PATCH, StepStatus.COMPLETED, dumps({"ok": is_new}))
            self.keep(record)
        return bool(self.value_of(record))

    def warn_of_unmet(self) -> None:
        """Log the first kept step that the body, which has returned, did not meet."""
        if self._records and (unmet := self.first_unmet()) is not None:
            logger.warning("step kept but not asked for id=%s step=%s", self.run.task_id, unmet.label)


def _must_be_met(record: StepRecord) -> bool:
    """Whether a body that does not ask for this record has changed. Nothing has happened for those left out."""
    return record.status != StepStatus.UNREAD and record.kind != StepKind.PATCH


def _check_name(kind: StepKind, name: str) -> None:
    if not isinstance(name, str) or not name or len(name) > NAME_LENGTH or name != clean_text(name):
        raise ValueError(f"The name is {name!r}; allowed: 1 to {NAME_LENGTH} characters that can be stored.")
    if kind in (StepKind.STEP, StepKind.BATCHES) and name.startswith(_RESERVED):
        raise ValueError(f"The name is {name!r}; allowed: names that don't begin with {', '.join(_RESERVED)}.")


def _has_open_transaction(database: str) -> bool:
    """Whether this thread is in an atomic() block on this database that is not that of a TestCase."""
    return not all(getattr(block, "_from_testcase", False) for block in connections[database].atomic_blocks)


def _failure(record: StepRecord, error: TaskError[Any]) -> StepFailed:
    return StepFailed(f"The step {record.label!r} failed: {error.error_code}: {error.message}", error)
