"""``Replay``: what a run of a task has recorded, and which of it the body has met again.

Each run starts the body from the top. A step that an earlier run has kept gives its value; the first that is not known
runs. In a function, a step that is not known while kept ones are unmet means that the code has changed. In a coroutine
there is no order, because steps may be gathered.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn, Protocol
from uuid import UUID

from django.db import connections

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
from ..models.claims import NAME_LENGTH, ClaimedTask, StepRecord

logger = logging.getLogger("horsies_django.worker")

#: Maximum records of a task.
MAX_RECORDS: Final = 10_000

#: Seconds up to which a sleep, and a step's wait for its next try, keep the slot.
SHORT_SLEEP: Final = 1.0
SHORT_BACKOFF: Final = 5.0

#: Seconds after which a wait without a timeout goes on at the latest: a hundred years.
FOREVER: Final = 100 * 365 * 86_400.0

#: How the names of records begin that are not those of steps.
_RESERVED: Final = ("event:", "patch:", "workflow:", "sleep")


class StepRun(Protocol):
    """The run of a task, as its replay uses it."""

    claimed: ClaimedTask
    options: Options
    is_atomic: bool
    decided: TaskInterrupt | None  # the end of the run, whatever the body returns

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
        self._met: set[tuple[str, int]] = set()
        self._first_events: dict[str, int] = {}
        self._last_position = 0

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
        if (outer := open_step()) is not None:
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
        return name, self._numbers[name]

    def next_number(self, name: str) -> int:
        """Return the number that the next step of this name gets."""
        return self._numbers[name] + 1

    # Afterwards. These make queries.

    @property
    def records(self) -> dict[tuple[str, int], StepRecord]:
        """The records by name and number, without failures that this run repeats."""
        if self._records is None:
            rows = self.run.read_steps() if self.run.claimed.claim > 1 else []
            self._records = {(row.name, row.number): row for row in self._counting(rows)}
            self._last_position = max((row.position or 0 for row in rows), default=0)
            for row in rows:
                if row.kind == StepKind.EVENT:
                    self._first_events[row.name] = min(row.number, self._first_events.get(row.name, row.number))
        return self._records

    def _counting(self, rows: Sequence[StepRecord]) -> Iterator[StepRecord]:
        """Leave out failures after which nothing was recorded, and the tries of a step, of an earlier attempt."""
        last = max((row.position or 0 for row in rows if row.status != StepStatus.FAILED), default=0)
        for row in rows:
            is_unsuccessful = row.kind == StepKind.STEP and row.status != StepStatus.COMPLETED
            if not (is_unsuccessful and row.attempt != self.run.claimed.attempt and (row.position or last + 1) > last):
                yield row

    def find(self, key: tuple[str, int]) -> StepRecord | None:
        """Return the record of this step, which counts as met from now on.

        Raises StepMismatch if there is none although the body has not met others.
        """
        record = self.records.get(key)
        self._met.add(key)
        if record is None and not self.run.claimed.is_async and (unmet := self.first_unmet()) is not None:
            asked = StepRecord(*key, "", "").label
            self.decide(
                StepMismatch(
                    f"The body asks for {asked!r}, which was not recorded, before {unmet.label!r}, which was: the code "
                    "of the task has changed."
                )
            )
        return record

    def first_unmet(self) -> StepRecord | None:
        """Return the first record that the body has not met; None if it has met all."""
        unmet = (row for key, row in self.records.items() if row.status != StepStatus.UNREAD and key not in self._met)
        return min(unmet, key=lambda row: row.position or self._last_position + 1, default=None)

    def decide(self, decision: TaskInterrupt) -> NoReturn:
        """End the run: from now on each call raises this, and what the body returns does not count."""
        self.run.decided = decision
        raise decision

    def write(self, record: StepRecord) -> bool:
        """Write a record; False if it is kept already. Raises TaskRevoked if the task is no longer this worker's."""
        if record.status not in (StepStatus.WAITING, StepStatus.RUNNING) and record.position is None:
            self._last_position += 1
            record.position = self._last_position
        if (record.name, record.number) not in self.records and len(self.records) >= MAX_RECORDS:
            raise HorsiesError(f"The task has {MAX_RECORDS:,} records; allowed: no more. Use context.restart().")
        if not self.run.write_step(record):
            return False
        self.records[record.name, record.number] = record
        return True

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
        shown = self.run.error_of(error)
        tries, record.status = record.attempts, StepStatus.WAITING  # the commit of a completed one may have failed
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
        self, key: tuple[str, int], ended: TaskResult[Any, Any] | None, timeout: float | None
    ) -> TaskResult[Any, Any]:
        """Return the result of a workflow that has ``ended``, None if it has not: then suspend the task."""
        record = self.find(key)
        if record is None or record.status == StepStatus.WAITING:
            if record is None:
                record = StepRecord(*key, StepKind.WAIT, StepStatus.WAITING, due_in=timeout)
            if ended is None and not (record.due_in is not None and record.due_in <= 0.0):
                if key not in self.records:
                    self.keep(record)
                self.suspend(key[0], FOREVER if record.due_in is None else record.due_in)
            message = f"{key[0]} did not end in time."
            late = TaskError[None](error_code=RetrievalCode.WAIT_TIMEOUT, message=message)
            result = TaskResult(err=late) if ended is None else ended
            record.status = StepStatus.COMPLETED
            record.result = (
                dumps({"err": result.err_value.as_json()}) if result.is_err() else self.encode(result.ok, record)
            )
            self.keep(record)
        stored = json.loads(record.result or "{}")
        if "err" in stored:
            return TaskResult(err=TaskError.from_json(stored["err"]))
        return TaskResult(ok=self.value_of(record))

    # The rest.

    def is_patched(self, name: str) -> bool:
        """Whether the new code applies to this run."""
        key = f"patch:{name}", 1
        record = self.records.get(key)
        self._met.add(key)
        if record is None:
            is_new = self.first_unmet() is None
            record = StepRecord(*key, StepKind.PATCH, StepStatus.COMPLETED, dumps({"ok": is_new}))
            self.keep(record)
        return bool(self.value_of(record))

    def warn_of_unmet(self) -> None:
        """Log the first kept step that the body, which has returned, did not meet."""
        if self._records and (unmet := self.first_unmet()) is not None:
            logger.warning("step kept but not asked for id=%s step=%s", self.run.task_id, unmet.label)


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
