"""The rows of *What fails most*."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.utils.safestring import SafeString

from ...core.results import OperationalCode
from ...models import ErrorGroup
from ...ops.metrics.errors import FailingGroup, FailureCounts, FailureReport
from ...ops.metrics.periods import Period
from ..times import relative_time
from .links import ErrorUrls
from .trend_bars import trend_bars


@dataclass(frozen=True, slots=True)
class ErrorName:
    """The name of an error group in parts: the class without its module, or else the code, and where it is raised."""

    name: str
    module: str
    code: str
    location: str

    @classmethod
    def of(cls, group: ErrorGroup | None, fingerprint: str) -> ErrorName:
        """Return the name of a group; its fingerprint if it has no row."""
        if group is None:
            return cls(fingerprint, "", "", "")
        module, _, name = group.exception_class.rpartition(".")
        code = "" if group.error_code == OperationalCode.UNHANDLED_EXCEPTION else group.error_code
        return cls(name or code or group.error_code, module, code if name else "", group.location)


@dataclass(frozen=True, slots=True)
class NamesCell:
    """The largest of some names, and how many more there are. ``title`` lists them; ``module`` ends with its dot."""

    module: str
    name: str
    more: int
    title: str
    url: str | None
    filter_url: str | None = None


#: Maximum number of names in a tooltip.
_MAX_LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """An error group in a list of errors."""

    error: ErrorName
    url: str | None
    counts: FailureCounts
    tasks: NamesCell | None
    queues: NamesCell | None
    first_seen: SafeString | str
    last_seen: SafeString | str
    trend: SafeString | str


def error_rows(report: FailureReport, period: Period, urls: ErrorUrls) -> list[ErrorRow]:
    """Return the groups of a report as rows; each links to its page with the same period."""
    return [_row(failing, report.now, period, urls) for failing in report.groups]


def _row(failing: FailingGroup, now: datetime | None, period: Period, urls: ErrorUrls) -> ErrorRow:
    group = failing.group
    return ErrorRow(
        ErrorName.of(group, failing.fingerprint),
        urls.group(failing.fingerprint, period.key),
        failing.counts,
        _names(failing.places.tasks, "task", period, urls),
        _names(failing.places.queues, "queue", period, urls),
        relative_time(group.first_seen_at, now) if group and now else "-",
        relative_time(group.last_seen_at, now) if group and now else "-",
        trend_bars(failing.series),
    )


def _names(counts: Counter[str], parameter: str, period: Period, urls: ErrorUrls) -> NamesCell | None:
    """Return the largest names; the first links to the errors of that task or queue."""
    if not counts:
        return None
    names = [name for name, _ in counts.most_common()]
    listed = ", ".join(names[:_MAX_LISTED]) + ("…" if len(names) > _MAX_LISTED else "")
    module, dot, name = names[0].rpartition(".") if parameter == "task" else ("", "", names[0])
    url = urls.errors(period.key, **{parameter: names[0]})
    return NamesCell(module + dot, name, len(names) - 1, listed, url)


def options(counts: Counter[str], chosen: str) -> Sequence[tuple[str, int | None, bool]]:
    """Return the choices of a filter: the names, the largest first, their numbers, and which one is chosen."""
    known: list[tuple[str, Any]] = list(counts.most_common())
    if chosen and chosen not in counts:
        known.append((chosen, None))
    return [(name, count, name == chosen) for name, count in known]
