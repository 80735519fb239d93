"""Checks of the queue against limits, for ``horsies_status --check`` and for monitoring from Python.

Each check reads what it needs, in one to four statements, however many tasks there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from ..core.backends import ConfiguredBackend
from ..core.numbers import format_brief
from ..core.option_parsers import parse_duration
from ..models import Task, Worker
from ..models.depths import Depths, depths
from ..models.rollup import RollupSpan
from .metrics import collect
from .metrics.history import FAILED, count_by_outcome, max_lag, rollup_clock, rollups_in
from .metrics.snapshot import reaper_ago

__all__ = ["Check", "CheckResult", "parse_checks", "run_checks"]

#: The longest window of a check of failures, in minutes: roll-ups by the minute are kept a little longer.
MAX_WINDOW: Final = 120

#: The largest number that a limit may be.
MAX_NUMBER: Final = 1_000_000

_FAILED_LIMIT: Final = re.compile(r"(\d+(?:\.\d+)?%|\d+)/(.+)")


@dataclass(frozen=True, slots=True)
class Check:
    """A check and its limit, as :meth:`parse` reads them from a text like ``oldest:emails=60s``.

    ``limit`` is in the unit of the check: seconds, a number, or a percentage if ``is_share``. ``minutes`` is the window
    of a check of failures.
    """

    text: str
    name: str
    limit: float
    queue: str | None = None
    is_share: bool = False
    minutes: int = 0

    @classmethod
    def parse(cls, text: str, queues: Iterable[str] = ()) -> Check:
        """Return the check that a text names. ``queues`` are those of the settings; none allows any name.

        Raises ValueError that says what is allowed.
        """
        head, is_given, limit = text.partition("=")
        name, has_queue, queue = head.partition(":")
        if name not in _CHECKS:
            raise ValueError(f"{text!r} is no check; allowed: {ALLOWED}.")
        kind = _CHECKS[name]
        if has_queue and not kind.of_queue:
            raise ValueError(f"{text!r}: {name} is of all queues; allowed: {kind.allowed}.")
        names = sorted(queues)
        if has_queue and (not queue or (names and queue not in names)):
            raise ValueError(f"{text!r}: there is no queue {queue!r}; allowed: {', '.join(names) or 'any name'}.")
        check = cls(text, name, 0.0, queue if has_queue else None)
        if not is_given and kind.default is not None:
            return replace(check, limit=kind.default)
        try:
            return kind.parse(check, limit.strip())
        except ValueError:
            raise ValueError(f"{text!r}: {limit!r} is not allowed; allowed: {kind.allowed}.") from None

    def run(self, backend: ConfiguredBackend) -> CheckResult:
        """Run the check on the database of a backend."""
        return _CHECKS[self.name].run(self, backend)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Whether a check has passed, the value that was found, and a sentence. A value of None: there is none."""

    check: Check
    is_ok: bool
    value: float | None
    words: str

    def __str__(self) -> str:
        return f"{'ok' if self.is_ok else 'failed'} {self.check.text}: {self.words}"

    def as_json(self) -> dict[str, Any]:
        """Return the dict that ``horsies_status --check --json`` prints."""
        return {"check": self.check.text, "ok": self.is_ok, "value": self.value, "words": self.words}


def parse_checks(texts: Iterable[str], queues: Iterable[str] = ()) -> list[Check]:
    """Return the checks that these texts name. Raises ValueError that names every mistake."""
    checks, mistakes, queues = [], [], list(queues)
    for text in texts:
        try:
            checks.append(Check.parse(text, queues))
        except ValueError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ValueError("\n".join(dict.fromkeys(mistakes)))
    return checks


def run_checks(checks: Sequence[Check], backend: ConfiguredBackend) -> list[CheckResult]:
    """Run the checks on the database of a backend, in their order."""
    return [check.run(backend) for check in checks]


# Limits.


def _duration(check: Check, text: str) -> Check:
    seconds = float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None
    duration = parse_duration(text if seconds is None else seconds)
    if duration is None:
        raise ValueError(text)
    return replace(check, limit=duration.total_seconds())


def _number(check: Check, text: str, least: int = 0) -> Check:
    if not re.fullmatch(r"\d{1,7}", text) or not least <= int(text) <= MAX_NUMBER:
        raise ValueError(text)
    return replace(check, limit=int(text))


def _failures(check: Check, text: str) -> Check:
    match = _FAILED_LIMIT.fullmatch(text)
    if match is None:
        raise ValueError(text)
    limit, window = match.groups()
    minutes = _duration(check, window).limit / 60
    if not (1 <= minutes <= MAX_WINDOW and minutes == int(minutes)):
        raise ValueError(text)
    is_share = limit.endswith("%")
    if is_share and float(limit[:-1]) > 100:
        raise ValueError(text)
    number = float(limit[:-1]) if is_share else _number(check, limit).limit
    return replace(check, limit=number, is_share=is_share, minutes=int(minutes))


# What the checks look at.


def _run_oldest(check: Check, backend: ConfiguredBackend) -> CheckResult:
    depths = _depths(check, backend)
    return _wait_result(check, depths.waits, "nothing is due", is_exact=depths.is_searched)


def _run_oldest_blocked(check: Check, backend: ConfiguredBackend) -> CheckResult:
    depths = _depths(check, backend)
    is_exact = depths.is_searched_blocked
    none = "no task waits for a limit" if is_exact else "no counted task waits for a limit, but not all were counted"
    return _wait_result(check, depths.blocked_waits, none, is_exact=is_exact)


def _depths(check: Check, backend: ConfiguredBackend) -> Depths:
    return depths(Task.objects.using(backend.config.database).order_by(), check.queue)


def _wait_result(check: Check, waits: float | None, none: str, *, is_exact: bool) -> CheckResult:
    words = none if waits is None else f"{'' if is_exact else 'at least '}{format_brief(waits)}"
    return CheckResult(check, (waits or 0.0) <= check.limit, waits, f"{words} (at most {format_brief(check.limit)})")


def _run_ready(check: Check, backend: ConfiguredBackend) -> CheckResult:
    tasks = Task.objects.using(backend.config.database).order_by()
    max_count = int(check.limit)
    due = [tasks.waiting(is_async=is_async).due() for is_async in (False, True)]
    due.append(tasks.deferred().due())
    if check.queue is not None:
        due = [rows.filter(queue_name=check.queue) for rows in due]
    count = 0
    for rows in due:
        count += rows[: max_count + 1 - count].count() if count <= max_count else 0
    words = f"{count:,} due" if count <= max_count else f"more than {max_count:,} due"
    return CheckResult(check, count <= max_count, count, f"{words} (at most {max_count:,})")


def _run_workers(check: Check, backend: ConfiguredBackend) -> CheckResult:
    recovery = backend.config.recovery
    count = Worker.objects.using(backend.config.database).alive(recovery.stale_after).claiming().count()
    words = f"{count} alive, and neither quiet, stopping nor standing still (at least {check.limit:.0f})"
    return CheckResult(check, count >= check.limit, count, words)


def _run_failed(check: Check, backend: ConfiguredBackend) -> CheckResult:
    ended = list(count_by_outcome(rollups_in(backend.config.database, RollupSpan.MINUTE, check.minutes)))
    failed, total = sum(count for outcome, count in ended if outcome == FAILED), sum(count for _, count in ended)
    share = 100 * failed / total if total else 0.0
    value = share if check.is_share else failed
    words = f"{failed:,} of {total:,} attempts failed for good in {check.minutes} min"
    if not total:
        words = f"no attempt counted in {check.minutes} min"
    elif check.is_share:
        words = f"{share:.1f} %: {words}"
    limit = f"{check.limit:g} %" if check.is_share else f"{check.limit:,.0f}"
    lag = rollup_clock(backend.config.database).lag
    if lag > 60 * check.minutes:  # no attempt of the window is counted
        words = f"unknown: attempts are counted up to {format_brief(lag)} ago (at most {limit})"
        return CheckResult(check, False, None, words)
    if lag > max_lag(backend.config.recovery.check_interval):
        words += f", counted up to {format_brief(lag)} ago"
    return CheckResult(check, value <= check.limit, value, f"{words} (at most {limit})")


def _run_reaper(check: Check, backend: ConfiguredBackend) -> CheckResult:
    ago = reaper_ago(backend.config.database)
    words = "no pass ever" if ago is None else f"last pass {format_brief(ago)} ago"
    is_ok = ago is not None and ago <= check.limit
    return CheckResult(check, is_ok, ago, f"{words} (at most {format_brief(check.limit)})")


def _run_unserved(check: Check, backend: ConfiguredBackend) -> CheckResult:
    names = collect(backend.config).unserved
    words = f"no worker claims from {', '.join(names)}" if names else "a worker claims from each queue with due tasks"
    return CheckResult(check, len(names) <= check.limit, len(names), f"{words} (at most {check.limit:.0f} without)")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of check: how its limit is read and what is allowed, and what it looks at."""

    parse: Callable[[Check, str], Check]
    allowed: str
    run: Callable[[Check, ConfiguredBackend], CheckResult]
    of_queue: bool = False
    default: float | None = None


_SECONDS: Final = "seconds, or a text like 90s, 5m, 2h"
_CHECKS: Final = {
    "oldest": _Kind(_duration, f"oldest=DURATION, oldest:QUEUE=DURATION; {_SECONDS}", _run_oldest, of_queue=True),
    "oldest_blocked": _Kind(
        _duration,
        f"oldest_blocked=DURATION, oldest_blocked:QUEUE=DURATION; {_SECONDS}",
        _run_oldest_blocked,
        of_queue=True,
    ),
    "ready": _Kind(_number, f"ready=N, ready:QUEUE=N; 0 to {MAX_NUMBER}", _run_ready, of_queue=True),
    "workers": _Kind(partial(_number, least=1), f"workers=N; 1 to {MAX_NUMBER}", _run_workers),
    "failed": _Kind(
        _failures,
        f"failed=P%/WINDOW, failed=N/WINDOW; a window of whole minutes, 1m to {MAX_WINDOW}m, like 5%/10m",
        _run_failed,
    ),
    "reaper": _Kind(_duration, f"reaper=DURATION; {_SECONDS}", _run_reaper),
    "unserved": _Kind(_number, f"unserved, unserved=N; 0 to {MAX_NUMBER}", _run_unserved, default=0.0),
}

#: What a check may be.
ALLOWED: Final = ", ".join(kind.allowed.partition(";")[0] for kind in _CHECKS.values())
