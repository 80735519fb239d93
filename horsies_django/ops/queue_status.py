"""The status of a queue: its limits and how much of them is used, its priority and its weight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from ..core.backends import all_backends, is_on
from ..core.numbers import fill_numbers, format_brief
from ..core.options import QueueOptions
from ..core.queue_policy import COLUMNS, KEEP_FOREVER, QueuePolicy
from ..core.status import TaskStatus
from ..db.expressions import SecondsUntil
from ..models import Queue, Task


def queue_options(name: str, database: str | None) -> QueueOptions | None:
    """Return a queue's options from the first backend on this database whose settings have any; else None."""
    candidates = (
        backend.config.queues.get(name)
        for backend in all_backends()
        if database is None or is_on(database, backend.config)
    )
    return next(filter(None, candidates), None)


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue with its limits.

    ``tokens`` is how many tasks its rate lets start now; None without a rate limit. ``latency_warning`` is the wait of
    the oldest due task from which the settings want a warning; None without one.
    """

    name: str
    is_paused: bool
    rules: QueuePolicy
    held: int
    tokens: float | None = None
    latency_warning: timedelta | None = None

    @property
    def next_in(self) -> float:
        """The seconds until the rate limit lets the next task start."""
        return 0.0 if self.rules.rate is None or self.tokens is None else self.rules.rate.wait(self.tokens)

    @property
    def is_full(self) -> bool:
        """Whether workers hold as many tasks as may run at once."""
        return self.rules.max_concurrency is not None and self.held >= self.rules.max_concurrency

    @property
    def descriptions(self) -> list[str]:
        """Translated phrases for everything that differs from the defaults."""
        return list(self._describe())

    def _describe(self) -> Iterator[str]:
        rules = self.rules
        if rules.max_concurrency == 0:
            yield _("stopped: limit 0")
        elif rules.max_concurrency is not None:
            yield fill_numbers(
                _("%(held)d of %(most)d in progress"), {"held": self.held, "most": rules.max_concurrency}
            )
        if rules.rate is not None:
            numbers = {"rate": rules.rate, "tokens": int(self.tokens or 0)}
            yield fill_numbers(_("rate %(rate)s, %(tokens)d tokens left"), numbers)
        if rules.priority:
            yield _("priority %d") % rules.priority
        if rules.weight != 1:
            yield _("weight %d") % rules.weight
        if rules.retention is not None:
            kept = rules.retention
            yield _("kept forever") if kept >= KEEP_FOREVER else _("kept for %s") % format_brief(kept)
        for state, seconds in (rules.retention_by_state or {}).items():
            words = {"state": TaskStatus[state.upper()].label, "kept": format_brief(seconds)}
            is_for_ever = seconds >= KEEP_FOREVER.total_seconds()
            yield (_("%(state)s: kept forever") if is_for_ever else _("%(state)s: kept for %(kept)s")) % words

    def as_json(self) -> dict[str, Any]:
        """Return the queue's part of what ``horsies_queue list --json`` prints. Retentions are in seconds."""
        rules = self.rules
        return {
            "name": self.name,
            "paused": self.is_paused,
            "max_concurrency": rules.max_concurrency,
            "rate_limit": None if rules.rate is None else str(rules.rate),
            "priority": rules.priority,
            "weight": rules.weight,
            "retention": None if rules.retention is None else rules.retention.total_seconds(),
            "retention_by_state": rules.retention_by_state,
            "held": self.held,
            "tokens": None if self.tokens is None else int(self.tokens),
            "latency_warning": None if self.latency_warning is None else self.latency_warning.total_seconds(),
        }


def queue_status(name: str, database: str | None, held: int | None = None) -> QueueStatus:
    """Return the status of one queue, in at most two statements. Held tasks are counted only if a limit needs them."""
    row = queue_rows(database).filter(name=name).first()
    status = status_from_row(name, row, held or 0, database)
    if held is None and status.rules.max_concurrency:
        return replace(status, held=Task.objects.using(database).active().filter(queue_name=name).count())
    return status


def queue_rows(database: str | None) -> QuerySet[Queue, dict[str, Any]]:
    """Return the rows of queues with the values that their status needs."""
    columns = ("name", "paused", "tokens", *COLUMNS)
    rows: QuerySet[Queue, dict[str, Any]] = Queue.objects.using(database).values(
        *columns, until=SecondsUntil("refilled_at")
    )
    return rows


def status_from_row(name: str, row: dict[str, Any] | None, held: int, database: str | None) -> QueueStatus:
    """Return the status of a queue from the values of its row."""
    options = queue_options(name, database)
    rules = QueuePolicy.of(options, row)
    tokens = None
    if rules.rate is not None:
        left, until = (row["tokens"], row["until"]) if row else (None, None)
        tokens = rules.rate.tokens(left, None if until is None else -until)
    threshold = options.latency_warning if options else None
    return QueueStatus(name, bool(row and row["paused"]), rules, held, tokens, threshold)
