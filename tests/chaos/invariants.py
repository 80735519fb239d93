"""The guarantees that hold for every task after a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from horsies_django import TASK_TERMINAL_STATES, TaskStatus
from horsies_django.models import Task, TaskAttempt, Workflow
from tests.chaos import ledger
from tests.chaos.disruptions import Event, clock
from tests.chaos.fleet import Fleet
from tests.jobs.models import Entry

#: The engine's own tasks, which write no ledger.
INTERNAL = ("build", "decide", "wake")

#: The error codes with which a body may fail, beside that of a crashed worker.
CODES = {
    "exactly_once": "UNHANDLED_EXCEPTION",
    "writing_at_least_once": "UNHANDLED_EXCEPTION",
    "untidy_at_least_once": "UNHANDLED_EXCEPTION",
    "broken": "BROKEN",
    "hogging_at_most_once": "TASK_TIMEOUT",
}

#: Bodies that end only with their process.
DEADLY = ("stubborn_at_least_once", "hogging_at_most_once")

#: Seconds around the life of a task in which events may explain how it ended.
AROUND = 5.0


class Violation(NamedTuple):
    """A broken guarantee, and the key of the body, if it is about one."""

    text: str
    key: str = ""


@dataclass(frozen=True)
class Records:
    """The rows, the ledger and the processes after a run."""

    rows: list[Task]
    paused: set[Any]
    attempts: dict[Any, list[TaskAttempt]]
    lines: list[ledger.Line]
    noted: Counter[str]
    entries: Counter[str]
    #: Process ids of runners that were disrupted, and of those whose supervisor could not watch them.
    disrupted: Set[int]
    unwatched: Set[int]
    #: Process ids of runners that outlived their supervisors.
    orphans: Sequence[int]

    @classmethod
    def read(cls, fleet: Fleet) -> Records:
        """Read the tables and the ledger."""
        attempts: dict[Any, list[TaskAttempt]] = {}
        for attempt in TaskAttempt.objects.order_by("task_id", "attempt"):
            attempts.setdefault(attempt.task_id, []).append(attempt)
        entries = Counter(Entry.objects.values_list("key", flat=True))
        paused = set(Workflow.objects.filter(status="PAUSED").values_list("root_id", flat=True))
        rows, lines = list(Task.objects.order_by("id")), ledger.lines()
        return cls(
            rows, paused, attempts, lines, ledger.effects(), entries, fleet.disrupted, fleet.unwatched, fleet.orphans
        )


def kind(row: Task) -> str:
    """Return the name of the row's task, without its module."""
    return row.task_name.rpartition(".")[2]


def key_of(row: Task) -> str:
    """Return the key that the row's body writes."""
    key = str(row.kwargs.get("key", row.pk))
    return f"{key}[{row.kwargs['item']}]" if "item" in row.kwargs else key


def violations(records: Records, sent: Set[str], uncertain: Set[str]) -> Iterator[Violation]:
    """Yield every broken guarantee."""
    bodies = [row for row in records.rows if kind(row) not in INTERNAL]
    keys = Counter(key_of(row) for row in bodies if row.status != TaskStatus.CANCELLED)
    alone = {key_of(row) for row in bodies if row.workflow_id is None}
    for key, count in keys.items():
        if count > 1:
            yield Violation(f"{key}: {count} rows for one send", key)
    if lost := sent - alone:
        yield Violation(f"sent but without a row: {sorted(lost)}")
    if unexpected := alone - sent - uncertain:
        yield Violation(f"a row that was never sent: {sorted(unexpected)}")
    yield from map(Violation, _of_workers(records))
    yield from _of_overlaps(records)
    yield from _of_live_workers(records)
    yield from _of_orphans(records)
    for row in records.rows:
        attempts = records.attempts.get(row.pk, [])
        is_internal = kind(row) in INTERNAL
        of_body = () if is_internal else (*_of_attempts(row, attempts), *_of_effects(row, records))
        for problem in (*_of_row(row, records.paused), *of_body):
            what = f"{key_of(row)} {kind(row)} {row.status} {row.error_code or ''} id={row.pk}"
            yield Violation(f"{what}: {problem}", key_of(row))


def explain(key: str, records: Records, timeline: Sequence[Event]) -> list[str]:
    """Return everything known of a body, and the events around it, in order of time."""
    history = [
        (line.at, f"body {line.what} pid={line.pid}" + f" other={line.other}" * (line.other > 0))
        for line in records.lines
        if line.key == key
    ]
    for row in records.rows:
        if key_of(row) == key:
            for one in records.attempts.get(row.pk, []):
                attempt_text = f"attempt {one.attempt} worker={one.worker_id} pid={one.pid}"
                if one.started_at:
                    history.append((one.started_at.timestamp(), f"{attempt_text} started"))
                end = f"{attempt_text} {one.outcome} {one.error_code or ''}" + " (to be retried)" * one.will_retry
                history.append((one.finished_at.timestamp(), end))
    if history:
        first, last = min(history)[0] - AROUND, max(history)[0] + AROUND
        history += [(event.at, f"    {event.name} {event.details}") for event in timeline if first < event.at < last]
    return [f"{clock(at)} {what}" for at, what in sorted(history)]


def _of_overlaps(records: Records) -> Iterator[Violation]:
    """Two bodies of one task run at once only if a supervisor could not end the first of them."""
    for line in records.lines:
        if line.what == ledger.OVERLAPPED and not {line.pid, line.other} & records.unwatched:
            yield Violation(f"{line.key}: began in {line.pid} while its body still ran in {line.other}", line.key)


def _of_live_workers(records: Records) -> Iterator[Violation]:
    """A worker is declared dead only if it was disrupted, or if one of its bodies ended its process."""
    names = {key_of(row): kind(row) for row in records.rows}
    doomed = {line.pid for line in records.lines if names.get(line.key) in DEADLY}
    for row in records.rows:
        for one in records.attempts.get(row.pk, []):
            if one.outcome == "WORKER_FAILURE" and one.pid and one.pid not in records.disrupted | doomed:
                yield Violation(
                    f"{key_of(row)} {kind(row)}: process {one.pid} was alive when it was declared dead", key_of(row)
                )


def _of_workers(records: Records) -> Iterator[str]:
    """A worker is one process: if attempts name two, another process has ended its task."""
    pids: dict[str, set[int]] = {}
    for attempts in records.attempts.values():
        for attempt in attempts:
            if attempt.pid is not None:
                pids.setdefault(attempt.worker_id, set()).add(attempt.pid)
    for worker_id, several in pids.items():
        if len(several) > 1:
            yield f"attempts of worker {worker_id} were written by processes {sorted(several)}"


def _of_orphans(records: Records) -> Iterator[Violation]:
    """A runner notices that its supervisor is gone, unless a body holds the interpreter."""
    names = {key_of(row): kind(row) for row in records.rows}
    for pid in records.orphans:
        keys = [line.key for line in records.lines if line.pid == pid]
        if not any(names.get(key) == "hogging_at_most_once" for key in keys):
            yield Violation(f"runner {pid} outlived its supervisor", keys[-1] if keys else "")


def _of_row(row: Task, paused: Set[Any]) -> Iterator[str]:
    if row.status not in TASK_TERMINAL_STATES and not (row.blocked and row.workflow_id in paused):
        yield f"has not ended (worker {row.claimed_by_worker_id}, due {row.enqueued_at})"
    is_taken_back = row.status == TaskStatus.CANCELLED and row.workflow_id in paused
    if row.status in (TaskStatus.CANCELLED, TaskStatus.EXPIRED) and not is_taken_back:
        yield "unexpected: nothing here cancels a task or sets a deadline"
    is_keyed = kind(row) not in INTERNAL and "key" in row.kwargs
    if row.status == TaskStatus.COMPLETED and is_keyed and row.result != {"ok": key_of(row)}:
        yield f"its result is {row.result}"
    if row.status == TaskStatus.FAILED and row.error_code not in ("WORKER_CRASHED", CODES.get(kind(row))):
        yield f"failed with an error that its body can't cause: {row.result}"
    if row.status == TaskStatus.FAILED and row.retry_count < row.max_retries:
        yield f"failed after {row.retry_count} of {row.max_retries} retries"


def _of_attempts(row: Task, attempts: list[TaskAttempt]) -> Iterator[str]:
    numbers = [attempt.attempt for attempt in attempts]
    if numbers != list(range(1, row.attempt + 1)):
        yield f"attempts {numbers}, but the row is at {row.attempt}"
    retried = [attempt.outcome for attempt in attempts if attempt.will_retry]
    # An attempt cut off by a shutdown counts as a failure of the worker, not as a retry.
    if not retried.count("FAILED") <= row.retry_count <= len(retried):
        yield f"{retried} were to be retried, but the row counts {row.retry_count}"
    is_taken_back = row.status == TaskStatus.CANCELLED  # perhaps while it waited for its next attempt
    if (
        row.status in TASK_TERMINAL_STATES
        and not is_taken_back
        and any(attempt.will_retry is (attempt is attempts[-1]) for attempt in attempts)
    ):
        yield f"will_retry is {[attempt.will_retry for attempt in attempts]}"
    last = attempts[-1].outcome if attempts else None
    expected = {"COMPLETED": {"COMPLETED"}, "FAILED": {"FAILED", "WORKER_FAILURE"}}.get(row.status, {last})
    if last not in expected:
        yield f"its last attempt is {last}"
    if any(attempt.outcome == "COMPLETED" for attempt in attempts[:-1]):
        yield "an attempt came after a completed one"


def _of_effects(row: Task, records: Records) -> Iterator[str]:
    noted, entries = records.noted[key_of(row)], records.entries[key_of(row)]
    completed = row.status == TaskStatus.COMPLETED
    if kind(row) == "exactly_once":
        if entries != int(completed):
            yield f"{entries} effects"
        return
    if kind(row) == "writing_at_least_once" and entries < int(completed):
        yield "it has completed, but its entry is missing"
    if completed and noted == 0 and "key" in row.kwargs:
        yield "it never ran"
    if noted > row.attempt:
        yield f"it ran {noted} times in {row.attempt} attempts"
    if kind(row).endswith("at_most_once") and noted > 1:
        yield f"it ran {noted} times"
