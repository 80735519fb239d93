"""``Replay``: what a run of a task has recorded, and which of it the body has met again.

Each run starts the body from the top. A step that an earlier run has kept gives its value; the first that is not known
runs. In a function, a step that is not known while kept ones are unmet means that the code has changed. In a coroutine
there is no order, because steps may be gathered; nor in other threads of a function: their records have no position.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, NoReturn

from django.db import Error, connections

from ..core.current_task import open_step
from ..core.exceptions import (
    HorsiesError,
    StepFailed,
    StepMismatch,
    TaskRevoked,
    TaskSuspended,
    WaitTimeout,
)
from ..core.results import RetrievalCode, TaskError, TaskResult
from ..core.retry import RetryPolicy
from ..core.serialization import check_size, clean_text, decode, dumps, encode
from ..core.status import StepKind, StepStatus
from ..db.errors import is_outage
from ..models.claims import EVENT_WAIT, FOREVER, NAME_LENGTH, StepRecord, error_result

if TYPE_CHECKING:
    from .task_run import TaskRun

logger = logging.getLogger("horsies_django.worker")

#: Maximum records of a task.
MAX_RECORDS: Final = 10_000

#: Seconds up to which a sleep, and a step's wait for its next try, keep the slot.
SHORT_SLEEP: Final = 1.0
SHORT_BACKOFF: Final = 5.0

_USED: Final = (
    "The name {name!r} was used before; allowed: each name once, if one of its steps is not in the body's own thread "
    "or asyncio task, because their order may change."
)

#: How the names of records begin that are not those of steps.
_RESERVED: Final = ("event:", "patch:", "workflow:", "sleep")


class Replay:
    """The records of one run."""

    def __init__(self, run: TaskRun) -> None:
        self.run = run
        self._lock = RLock()  # a function may take steps in threads of its own
        self._numbers: Counter[str] = Counter()
        self._used_outside: set[str] = set()
        self._records: dict[tuple[str, int], StepRecord] | None = None
        self._unmet: dict[tuple[str, int], StepRecord] = {}
        self._awaited: set[tuple[str, int]] = set()  # unread events for which an earlier run has waited
        self._has_gone_on = False  # the body has come to a step that is new
        self._events: dict[str, list[int]] = defaultdict(list)  # the numbers that the waits of the body take
        self._last_events: Counter[str] = Counter()
        self._last_position = 0  # of earlier runs
        self._calls = 0
        self._call_of: dict[tuple[str, int], int] = {}
        self._children: set[asyncio.Task[Any]] = set()
        self._left_loops: list[tuple[StepRecord, Callable[[], bool]]] = []
        self.open_loop: str | None = None  # what the body is in between two turns
        self.loop_progress: str | None = None  # what a loop has reported last

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
        open_key = open_step()
        if (outer := open_key[0] if open_key else self.open_loop) is not None:
            raise RuntimeError(f"{name!r} was called inside {outer}; allowed: steps and waits after one another.")
        if run.is_atomic or _has_open_transaction(run.database):
            raise RuntimeError(f"{name!r} was called inside a transaction; allowed: steps and waits outside of one.")
        is_outside = not run.is_in_body()
        if is_outside and is_wait:
            raise RuntimeError(
                f"{name!r} was called in another thread or asyncio task; allowed: waits in the body's own."
            )
        with self._lock:
            if kind == StepKind.PATCH:  # one answer, whoever asks
                self._numbers[name] = 0
            elif name in self._used_outside or (is_outside and name in self._numbers):
                raise RuntimeError(_USED.format(name=name))
            elif is_outside:
                self._used_outside.add(name)
            self._numbers[name] += 1
            key = name, self._numbers[name]
            self._calls = self._call_of[key] = self._calls + 1
        return key

    def key_number(self, name: str) -> int:
        """Return the number of the next step of this name, or inside a step its own. Raises RuntimeError for others."""
        outer, key = open_step() or (self.open_loop, None)
        if key is not None and key[0] == name:
            return key[1]
        if outer is not None:
            raise RuntimeError(
                f"key({name!r}) was called inside {outer}; allowed: a step's own name, or between steps."
            )
        if name in self._numbers and not self.run.is_in_body():
            raise RuntimeError(_USED.format(name=name))
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

    def records(self) -> dict[tuple[str, int], StepRecord]:
        """Return the records by name and number, without failures that this run repeats. Reads them the first time."""
        with self._lock:
            if self._records is None:
                with self.ending_at_outage():
                    return self._read()
            return self._records

    @property
    def has_records(self) -> bool:
        """Whether the body has recorded anything, in this run or before."""
        return any(row.status != StepStatus.UNREAD for row in (self._records or {}).values())

    @property
    def is_replaying(self) -> bool:
        """Whether the body has done nothing new, and has yet to meet what earlier runs have recorded or waited for."""
        if self._records is None:
            return self.run.may_replay
        return not self._has_gone_on and bool(self._awaited or any(row.attempt for row in self._unmet.values()))

    @property
    def last_progress(self) -> int:
        """The number of the last attempt that has completed a step, a turn or a wait; 0 if there is none."""
        rows = (self._records or {}).values()
        return max((row.attempt for row in rows if row.status in (StepStatus.COMPLETED, StepStatus.RUNNING)), default=0)

    def _read(self) -> dict[tuple[str, int], StepRecord]:
        """Read the records of earlier runs, and set aside what this run repeats.

        That are failures, and the tries of a step, of an earlier attempt after which the body asked for nothing. An
        event that counts no longer keeps its number, but has no position.
        """
        rows = self.run.read_steps() if self.run.claimed.claim > 1 else []
        rows.sort(key=lambda row: row.number)
        last = max((row.position or 0 for row in rows if row.status != StepStatus.FAILED), default=0)
        waits = [row for row in rows if row.kind != StepKind.STEP and row.attempt]
        has_open_wait = any(row.status in (StepStatus.WAITING, StepStatus.UNREAD) for row in waits)
        self._last_position = max((row.position or 0 for row in rows), default=0)
        records = self._records = {}
        for row in rows:
            is_event = row.kind == StepKind.EVENT
            if is_event:
                self._last_events[row.name] = row.number
            if is_event and _is_outside_order(row):
                continue
            is_last = row.status == StepStatus.WAITING or not (has_open_wait or (row.position or last + 1) <= last)
            is_try = row.status == StepStatus.FAILED or (row.kind, row.status) == (StepKind.STEP, StepStatus.WAITING)
            if is_try and is_last and row.attempt != self.run.claimed.attempt:
                if is_event:
                    self.run.write_step(replace(row, position=None))
                continue
            records[row.name, row.number] = row
            if is_event:
                self._events[row.name].append(row.number)
            if row.status == StepStatus.UNREAD and row.attempt:
                self._awaited.add((row.name, row.number))
            if not (row.status == StepStatus.UNREAD or row.kind == StepKind.PATCH or _is_outside_order(row)):
                self._unmet[row.name, row.number] = row
        return records

    def find(self, key: tuple[str, int]) -> StepRecord | None:
        """Return the record of this step, which counts as met from now on.

        Raises StepMismatch if there is none although the body has not met others, HorsiesError for one too many.
        """
        while self._left_loops and self._has_order:
            self._keep_left(*self._left_loops.pop())
        with self._lock:
            record = self.records().get(key)
            self._unmet.pop(key, None)
            self._awaited.discard(key)
            is_new = record is None or record.status == StepStatus.UNREAD
            self._has_gone_on = self._has_gone_on or is_new
            unmet = self.first_unmet() if is_new and self._has_order else None
        if unmet is not None:
            asked = StepRecord(*key, "", "").label
            self.decide(
                StepMismatch(
                    f"The body asks for {asked!r}, which was not recorded, before {unmet.label!r}, which was: the code "
                    "of the task has changed."
                )
            )
        if record is None and len(self.records()) >= MAX_RECORDS:
            raise HorsiesError(f"The task has {MAX_RECORDS:,} records; allowed: no more. Use context.restart().")
        return record

    @property
    def _has_order(self) -> bool:
        """Whether the caller takes its steps in an order: in a function, in its own thread."""
        return not self.run.claimed.is_async and self.run.is_in_body()

    def first_unmet(self) -> StepRecord | None:
        """Return the first record that the body has not met; None if it has met all."""
        with self._lock:
            self.records()  # reads them
            return min(self._unmet.values(), key=lambda row: row.position or self._last_position + 1, default=None)

    def decide(self, decision: BaseException) -> NoReturn:
        """End the run: from now on each call raises this, and what the body returns does not count."""
        self.run.decided = decision
        raise decision

    @contextmanager
    def ending_at_outage(self) -> Iterator[None]:
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
        self.records()  # reads the last position
        with self._lock:
            if record.status == StepStatus.FAILED:
                self._calls = self._call_of[key] = self._calls + 1  # what was called before does not follow from it
            record.position, record.attempt = None, self.run.claimed.attempt
            if record.status != StepStatus.WAITING and (self.run.claimed.is_async or self._has_order):
                record.position = self._last_position + self._call_of.get(key, self._calls)
        with self.ending_at_outage():
            is_written = self.run.write_step(record)
        if is_written and record.kind != StepKind.BATCHES:
            self.records()[key] = record
        return is_written

    def keep(self, record: StepRecord) -> None:
        """Write a record that only this run writes. Raises TaskRevoked if the task is no longer this worker's."""
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

    def leave(self, loop: StepRecord, is_over: Callable[[], bool]) -> None:
        """Note that the body has left a loop before its end; ``is_over()`` once it asks for something else.

        A run that ends now goes on with the loop. But what the body asks for next follows the loop in each run.
        """
        if self._has_order:
            self._left_loops.append((loop, is_over))

    def _keep_left(self, loop: StepRecord, is_over: Callable[[], bool]) -> None:
        """Record a loop that the body has left: one with a failure, or left by one, goes on in the next run."""
        if is_over():
            self.keep(replace(loop, status=StepStatus.COMPLETED))
        elif loop.position is None:
            self.keep(loop)

    # Steps.

    def open_step(self, key: tuple[str, int]) -> StepRecord:
        """Return the record of a step: one that has ended, or one to try."""
        record = self.find(key) or StepRecord(*key, StepKind.STEP, StepStatus.WAITING, attempts=0)
        if record.status == StepStatus.WAITING:
            record.attempts += 1
        return record

    def complete(self, record: StepRecord, value: Any) -> None:
        """Keep the value of a step."""
        record.result, record.status = self.encode(value, record), StepStatus.COMPLETED
        self.keep(record)

    def fail(self, record: StepRecord, error: Exception, policy: RetryPolicy | None) -> float:
        """Return the seconds to sleep before another try. Suspends the task for a long one.

        Raises StepFailed from ``error`` if no try is left.
        """
        has_returned = record.status == StepStatus.COMPLETED
        record.status = StepStatus.WAITING
        self.run.raise_if_stopping()
        if self.run.decided is not None:
            raise self.run.decided
        if has_returned and is_outage(error):
            self.decide(error)  # whether its commit has succeeded is not known
        shown, tries = self.run.error_of(error), record.attempts
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
        record = self.records().get(key) or StepRecord(*key, StepKind.SLEEP, StepStatus.WAITING)
        if record.status == StepStatus.WAITING:
            record.status = StepStatus.COMPLETED
            self.keep(record)

    def wait_event(self, key: tuple[str, int], timeout: float | None) -> Any:
        """Return the payload of the event, suspend the task, or raise WaitTimeout."""
        name = key[0]
        key = name, self._number_of_event(*key)
        record = self.find(key) or self._put(StepRecord(*key, StepKind.EVENT, StepStatus.WAITING, due_in=timeout))
        if record.is_late:
            record = self._put(replace(record, status=StepStatus.FAILED, result=_late(f"The event {name!r}")))
        match record.status:
            case StepStatus.UNREAD:
                record.status = StepStatus.COMPLETED
                self.keep(record)
            case StepStatus.WAITING:
                self.suspend(name, FOREVER if record.due_in is None else record.due_in)
            case StepStatus.FAILED:
                raise WaitTimeout(f"No event {name.removeprefix(EVENT_WAIT)!r} came in time.")
        return self.value_of(record)

    def _number_of_event(self, name: str, call: int) -> int:
        """Return the number of the event that the n-th wait takes."""
        self.records()  # reads the numbers
        numbers = self._events[name]
        if call > len(numbers):
            self._last_events[name] += 1
            numbers.append(self._last_events[name])
        return numbers[call - 1]

    def _put(self, record: StepRecord) -> StepRecord:
        """Write a wait for an event, or its time-out; return it, or the event that has come meanwhile."""
        if not self.write(record):
            self.run.raise_if_stopping()
            for row in self.run.read_steps():
                if (row.name, row.number, row.status) == (record.name, record.number, StepStatus.UNREAD):
                    self.records()[row.name, row.number] = row
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
            if ended is not None:
                record.status, record.result = StepStatus.COMPLETED, dumps(self._encode_result(ended, key[0]))
                check_size(record.result, self.run.options.max_payload_bytes, f"the result of {key[0]}")
            elif record.is_late:
                record.status, record.result = StepStatus.FAILED, _late(key[0])
            if record.status != StepStatus.WAITING or key not in self.records():
                self.keep(record)
            if record.status == StepStatus.WAITING:
                self.suspend(key[0], FOREVER if record.due_in is None else record.due_in)
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

    def is_patched(self, key: tuple[str, int]) -> bool:
        """Whether the new code applies to this run."""
        with self._lock:
            record = self.records().get(key)
            if record is None:
                is_new = self.first_unmet() is None
                record = StepRecord(*key, StepKind.PATCH, StepStatus.COMPLETED, dumps({"ok": is_new}))
                self.keep(record)
        return bool(self.value_of(record))

    def warn_of_unmet(self) -> None:
        """Log the first kept step that the body, which has returned, did not meet."""
        if self._records and (unmet := self.first_unmet()) is not None:
            logger.warning("step kept but not asked for id=%s step=%s", self.run.task_id, unmet.label)


def _is_outside_order(record: StepRecord) -> bool:
    """Whether a record that has ended is of another thread of a function, or an event that counts no longer."""
    return record.position is None and record.status in (StepStatus.COMPLETED, StepStatus.FAILED)


def _late(what: str) -> str:
    """Return the result of a wait that timed out."""
    return error_result(RetrievalCode.WAIT_TIMEOUT, f"{what} did not come in time.")


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
