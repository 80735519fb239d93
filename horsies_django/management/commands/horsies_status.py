"""``manage.py horsies_status``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from django.core.management.base import CommandParser

from horsies_django.core.numbers import format_about, format_brief
from horsies_django.core.printable import one_line
from horsies_django.management.base import QueueCommand, number_text, table, usage_errors
from horsies_django.ops.health import ALLOWED, CheckResult, parse_checks, run_checks
from horsies_django.ops.metrics import Count, MetricsSnapshot, collect
from horsies_django.ops.metrics.history import max_lag
from horsies_django.ops.metrics.latency import LatencyWarning
from horsies_django.ops.metrics.snapshot import QueueMetrics
from horsies_django.ops.metrics.workers import Liveness, WorkerStatus

_QUEUE: Final = (
    "queue",
    "due",
    "latency",
    "blocked",
    "oldest blocked",
    "in progress",
    "completed/h",
    "failed/h",
    "wait p95",
    "run p95",
    "",
)
_WORKER: Final = ("worker", "host", "pid", "load", "last heartbeat", "")

#: Labels of counts whose names are ambiguous.
_WORDS: Final = {"overdue": "overdue (past good_until)"}


class Command(QueueCommand):
    """Prints a status report: counts by state, queues, workers, and the latency."""

    help = (
        "Print a status report: tasks by state, the due tasks and the latency of each queue, workers and their load, "
        "workflows in progress, and the reaper's last pass. The latency is how long the oldest due task has waited. "
        "The admin's overview shows the same. Large numbers are lower bounds (+). The command only "
        "reads, and is fast with millions of tasks. --backend also reads HORSIES_STATUS_BACKEND; the flag takes "
        "precedence. Exit status: 0 printed, whatever the state; 1 a --check has failed, or the database or its tables "
        "are unavailable; 2 wrong usage."
    )

    backend_help = "A key of TASKS, whose database is read (default: default)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print one JSON object; times are seconds.")
        self.add_backend(parser)
        text = f"Print whether this holds instead of the report, and exit with 1 if not; repeatable. {ALLOWED}."
        parser.add_argument("--check", action="append", metavar="NAME=LIMIT", help=text.replace("%", "%%"))

    def handle(self, *args: Any, **options: Any) -> None:
        with usage_errors():
            backend = self.backend(options["backend"])
            checks = parse_checks(options["check"] or (), backend.queues)
        with self.tables(backend.config.database):
            outcome = run_checks(checks, backend) if checks else collect(backend.config, with_trends=True)
        if not isinstance(outcome, MetricsSnapshot):
            self._print_checks(outcome, is_json=options["json"])
        elif options["json"]:
            self.stdout.write(json.dumps(outcome.as_json(), indent=2))
        else:
            for line in _lines(outcome):
                self.stdout.write(line)

    def _print_checks(self, results: Sequence[CheckResult], *, is_json: bool) -> None:
        """Print each result, and failed ones to stderr too; exit with status 1 if one has failed."""
        is_ok = all(result.is_ok for result in results)
        if is_json:
            report = {"ok": is_ok, "checks": [result.as_json() for result in results]}
            self.stdout.write(json.dumps(report, indent=2))
        for result in results:
            if not is_json:
                self.stdout.write(one_line(str(result)))
            if not result.is_ok:
                self.stderr.write(one_line(str(result)))
        if not is_ok:
            sys.exit(1)


def _lines(snapshot: MetricsSnapshot) -> Iterable[str]:
    states = [(_WORDS.get(name, name), _number(count)) for name, count in snapshot.counts.items()]
    yield from table(("state", "tasks"), states, 1)
    if snapshot.waits:
        yield ""
        yield from table(
            ("waiting for", "tasks"), [(name, _number(count)) for name, count in snapshot.waits.items()], 1
        )
    yield ""
    yield from table(_QUEUE, [_queue_row(queue) for queue in snapshot.queues], 1)
    if snapshot.is_more_queues:
        yield "There are more queues: listed are those of the settings, those that have a row, and the first others."
    yield ""
    if snapshot.workers:
        yield from table(_WORKER, [_worker_row(worker) for worker in snapshot.workers], 2)
    else:
        yield "There is no worker: start one with `manage.py horsies_worker`."
    yield ""
    yield "workflows: " + ", ".join(f"{_number(count)} {name}" for name, count in snapshot.workflows.items())
    for warning in snapshot.latency_warnings:
        yield f"late: {one_line(_late(warning))}"
    if unserved := snapshot.unserved:
        yield "due, and served by no worker: " + one_line(", ".join(unserved))
    if behind := snapshot.clock_behind:
        yield (
            f"The database's clock was set back: rows have times up to {format_brief(behind)} ahead. Until it reaches "
            "them, schedules, sleeps, retries and tasks that were sent before may stand still: see docs/recovery.md."
        )
    depths = snapshot.depths
    yield f"latency: {'' if depths.is_searched else 'at least '}{format_brief(depths.waits)}"
    if depths.blocked_waits is not None:
        bound = "" if depths.is_searched_blocked else "at least "
        yield f"oldest task that waits for its limit: {bound}{format_brief(depths.blocked_waits)}"
    yield f"reaper's last pass: {_ago(snapshot.reaper_ago)}{' (late)' if snapshot.is_reaper_late else ''}"
    if snapshot.rollup_lag > max_lag(snapshot.reaper_interval):
        yield f"throughput, failures and percentiles are counted up to {_ago(snapshot.rollup_lag)}"


def _number(count: Count) -> str:
    return number_text(count.number, count.is_more)


def _queue_row(queue: QueueMetrics) -> tuple[str, ...]:
    throughput = queue.throughput
    return (
        queue.name,
        number_text(queue.depth.due, queue.depth.is_more),
        format_brief(queue.depth.waits),
        number_text(queue.depth.blocked, queue.depth.is_more_blocked),
        format_brief(queue.depth.blocked_waits),
        str(queue.status.held),
        number_text(throughput.counts["completed"]),
        number_text(throughput.counts["failed"]),
        format_about(throughput.wait_p95),
        format_about(throughput.run_p95),
        "; ".join([*_marks(queue), *queue.status.descriptions]),
    )


def _marks(queue: QueueMetrics) -> Iterable[str]:
    if queue.status.is_paused:
        yield "paused"
    if queue.latency_warning:
        yield "late"


def _late(warning: LatencyWarning) -> str:
    text = f"{warning.queue}: oldest task waits {format_brief(warning.waits)}, "
    text += f"more than its latency_warning of {format_brief(warning.threshold)}"
    if warning.since:
        text += f", since {warning.since:%Y-%m-%d %H:%M} UTC{' or earlier' if warning.is_at_least else ''}"
    return text


def _worker_row(worker: WorkerStatus) -> tuple[str, ...]:
    return (worker.id, worker.hostname, str(worker.pid), worker.shown_load, _ago(worker.beat_ago), _state(worker))


def _state(worker: WorkerStatus) -> str:
    if worker.liveness is Liveness.OFFLINE:
        return "offline"
    if not worker.is_responding:
        return f"not responding (expected every {format_brief(worker.beat_interval)})"
    if worker.stalled_for is not None:
        return f"stands still for {format_brief(worker.stalled_for)}"
    return "stopping" if worker.is_stopping else "quiet" if worker.is_quiet else ""


def _ago(seconds: float | None) -> str:
    return "never" if seconds is None else f"{format_brief(seconds)} ago"
