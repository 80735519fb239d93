"""The state machine of a task as a specification in plain Python: a dict of rows and a clock, without the package.

Times are whole seconds; the caller advances ``now``. A worker passes a row and the number of the claim by which it
believes to hold the row; if the row has another number, nothing may change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

STALE = 120
LATER = 100
SOON = 10  # the delay without a policy; shorter than any step
DAY = 86_400
LIVE = ("PENDING", "CLAIMED", "RUNNING")
HOPELESS = ("WORKER_SERIALIZATION_ERROR", "WORKER_RESOLUTION_ERROR")
CODES = {
    "raise": "UNHANDLED_EXCEPTION",
    "discard": "TASK_DISCARDED",
    "retry": "TASK_RETRY",
    "retry by policy": "TASK_RETRY",
    "unstorable": "WORKER_SERIALIZATION_ERROR",
}
ENDED_AT = {"COMPLETED": "completed_at", "FAILED": "failed_at", "CANCELLED": "cancelled_at", "EXPIRED": "expired_at"}


@dataclass
class Row:
    sent_at: int
    enqueued_at: int
    good_until: int | None = None
    priority: int = 0
    queue: str = "default"
    unique_key: str | None = None
    codes: tuple[str, ...] = ()
    delays: tuple[int, ...] = ()
    timeout: int | None = None
    retention: int | str | None = "inherit"
    status: str = "PENDING"
    claim: int = 0
    worker: str | None = None
    attempt: int = 0
    retry_count: int = 0
    error_code: str | None = None
    has_result: bool = False
    beat_at: int = 0
    claimed_at: int | None = None
    started_at: int | None = None
    next_retry_at: int | None = None
    ended_at: int | None = None
    kept_until: int | None = None
    #: number → (outcome, will retry, error code)
    attempts: dict[int, tuple[str, bool, str]] = field(default_factory=dict)

    def retries(self, code: str) -> bool:
        listed = code in self.codes or ("*" in self.codes and code not in HOPELESS)
        return listed and self.retry_count < len(self.delays)


class Model:
    def __init__(self) -> None:
        self.now = 0
        self.rows: dict[Any, Row] = {}
        self.paused: set[str] = set()

    # – → PENDING

    def holder(self, unique_key: str | None) -> Any:
        """Return the id of the live row with the unique key."""
        holders = (key for key, row in self.rows.items() if row.unique_key == unique_key and row.status in LIVE)
        return None if unique_key is None else next(holders, None)

    def send(self, key: Any, delay: int, good_for: int | None, **options: Any) -> None:
        good_until = None if good_for is None else self.now + good_for
        self.rows[key] = Row(sent_at=self.now, enqueued_at=self.now + delay, good_until=good_until, **options)

    # PENDING → CLAIMED → RUNNING

    def claimable(self) -> list[Any]:
        return [
            key
            for key, row in self.rows.items()
            if row.status == "PENDING"
            and row.enqueued_at <= self.now
            and not self.is_late(row)
            and row.queue not in self.paused
        ]

    def rank(self, key: Any) -> tuple[int, int]:
        return -self.rows[key].priority, self.rows[key].enqueued_at

    def claim(self, key: Any, worker: str, *, start: bool) -> None:
        row = self.rows[key]
        row.status, row.worker, row.claimed_at, row.beat_at = "CLAIMED", worker, self.now, self.now
        row.next_retry_at = None
        row.claim += 1
        if start:
            self.begin(row)

    def start(self, key: Any, claim: int) -> None:
        if row := self.held(key, claim, "CLAIMED"):
            self.finish(row, "EXPIRED", "TASK_EXPIRED") if self.is_late(row) else self.begin(row)

    def begin(self, row: Row) -> None:
        row.status, row.started_at, row.beat_at = "RUNNING", self.now, self.now
        row.attempt += 1

    # CLAIMED, RUNNING → PENDING without an attempt

    def release(self, key: Any, claim: int) -> None:
        if row := self.held(key, claim, "CLAIMED"):
            self.put_back(row)

    def hand_back_unknown(self, worker: str, known: Collection[tuple[Any, int]]) -> None:
        for key, row in self.rows.items():
            if row.worker == worker and row.status in ("CLAIMED", "RUNNING") and (key, row.claim) not in known:
                row.attempt -= row.status == "RUNNING"
                self.put_back(row)

    def put_back(self, row: Row) -> None:
        row.status, row.worker, row.claimed_at, row.started_at = "PENDING", None, None, None

    # End of a run

    def end(self, key: Any, claim: int, how: str) -> None:
        row = self.held(key, claim, "RUNNING")
        if row is None:
            return
        row.started_at = self.now  # a rule runs the whole body
        code = CODES.get(how, how)
        if how == "ok":
            row.attempts[row.attempt] = ("COMPLETED", False, "")
            self.finish(row, "COMPLETED", None)
        elif how == "snooze":
            row.attempt -= 1
            row.enqueued_at, row.next_retry_at = self.now + LATER, None
            self.put_back(row)
        elif how.startswith("retry"):
            delay = LATER if how == "retry" else (*row.delays, SOON)[row.retry_count if row.delays else 0]
            self.fail(row, code, "FAILED", delay if row.retry_count < (len(row.delays) or 2) else None)
        else:
            self.fail(row, code, "FAILED", self.delay(row, code) if how != "discard" else None)

    def delay(self, row: Row, code: str) -> int | None:
        return row.delays[row.retry_count] if row.retries(code) else None

    def fail(self, row: Row, code: str, outcome: str, delay: int | None) -> None:
        again = delay is not None and (row.good_until is None or self.now + delay < row.good_until)
        row.attempts[row.attempt] = (outcome, again, code)
        if again:
            row.retry_count += 1
            row.error_code = code
            row.enqueued_at = row.next_retry_at = self.now + (delay or 0)
            self.put_back(row)
        else:
            self.finish(row, "FAILED", code)

    def finish(self, row: Row, status: str, code: str | None) -> None:
        row.status, row.error_code, row.ended_at, row.has_result = status, code, self.now, True
        row.next_retry_at = None
        kept = 30 * DAY
        if status == "COMPLETED":
            kept = row.retention if row.retention != "inherit" else 7 * DAY
        row.kept_until = self.now + kept if isinstance(kept, int) else None

    # Recovery

    def beat(self, key: Any, claim: int, status: str) -> None:
        if row := self.held(key, claim, status):
            row.beat_at = self.now

    def recover(self, is_lost: Callable[[Row], bool], *, overrun: bool = False) -> None:
        for row in self.rows.values():
            if row.status == "CLAIMED" and is_lost(row):
                self.put_back(row)
            elif row.status == "RUNNING" and is_lost(row):
                stuck = overrun and row.timeout is not None and self.now - (row.started_at or 0) >= row.timeout
                code, outcome = ("TASK_TIMEOUT", "FAILED") if stuck else ("WORKER_CRASHED", "WORKER_FAILURE")
                self.fail(row, code, outcome, self.delay(row, code))

    def reap(self) -> None:
        self.recover(lambda row: self.now - row.beat_at > STALE)
        for row in self.rows.values():
            if row.status == "PENDING" and self.is_late(row):
                self.finish(row, "EXPIRED", "TASK_EXPIRED")
        past = [key for key, row in self.rows.items() if row.kept_until is not None and row.kept_until <= self.now]
        for key in past:
            del self.rows[key]

    def is_late(self, row: Row) -> bool:
        return row.good_until is not None and row.good_until <= self.now

    # Actions of users

    def cancel(self, keys: Iterable[Any], *, include_running: bool) -> int:
        states = LIVE if include_running else ("PENDING", "CLAIMED")
        rows = [self.rows[key] for key in set(keys) if self.rows[key].status in states]
        for row in rows:
            self.finish(row, "CANCELLED", "TASK_CANCELLED")
        return len(rows)

    def retry(self, keys: Iterable[Any]) -> int:
        count = 0
        for key in sorted(set(keys)):  # ids grow with time
            row = self.rows[key]
            if row.status in ("FAILED", "CANCELLED", "EXPIRED") and self.holder(row.unique_key) is None:
                row.enqueued_at, row.retry_count, row.next_retry_at = self.now, 0, None
                row.good_until = None if self.is_late(row) else row.good_until
                row.error_code, row.ended_at, row.kept_until, row.has_result = None, None, None, False
                self.put_back(row)
                count += 1
        return count

    def held(self, key: Any, claim: int, status: str) -> Row | None:
        """Return the row if the claim still holds it: the fence."""
        row = self.rows.get(key)
        return row if row and (row.status, row.claim) == (status, claim) else None
