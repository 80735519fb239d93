"""Slots: the times at which a schedule is due, as aware datetimes in UTC.

A local time that daylight saving skips runs at the first instant after the gap, or not at all; one that occurs twice
runs once, at the earlier instant. Intervals count from the previous slot: they do not drift and ignore daylight saving.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from .cron import iterator
from .schedule_patterns import Cron, Every

_TICK: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)
_YEAR: Final = timedelta(days=365)

#: Where, and for how many slots, the gaps of a cron expression are measured.
_SAMPLE: Final = datetime(2026, 1, 1, tzinfo=UTC)
_SAMPLES: Final = 100


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of one schedule. ``anchor`` is a past or planned slot from which intervals count."""

    pattern: Every | Cron
    zone: ZoneInfo
    name: str = ""
    skip_nonexistent: bool = False
    start_at: datetime | None = None
    end_at: datetime | None = None
    jitter: float = 0.0
    anchor: datetime | None = None

    def due_at(self, slot: datetime) -> datetime:
        """Return when a slot runs: later by its jitter, which is deterministic, but not past the end."""
        if not self.jitter:
            return slot
        drawn = hashlib.blake2b(f"{self.name}\0{slot.timestamp():.6f}".encode(), digest_size=6).digest()
        run_at = slot + timedelta(seconds=self.jitter * int.from_bytes(drawn) / 2**48)
        return run_at if self.end_at is None else max(slot, min(run_at, self.end_at))

    def slot_of(self, run_at: datetime | None, slot: datetime | None) -> datetime | None:
        """Return the slot of a planned run; the time itself if the run was moved by hand."""
        return slot if slot is not None and self.due_at(slot) == run_at else run_at

    def is_within(self, moment: datetime) -> bool:
        """Whether a time lies in the window of the schedule."""
        return (self.start_at is None or self.start_at <= moment) and (self.end_at is None or moment <= self.end_at)

    def after(self, moment: datetime) -> datetime | None:
        """Return the first slot later than ``moment``; None if there is none before the schedule ends."""
        return next(self._walk(moment), None)

    def upcoming(self, now: datetime, n: int) -> list[datetime]:
        """Return the next ``n`` slots after ``now``, fewer if the schedule ends before."""
        return list(itertools.islice(self._walk(now), n))

    def shortest_gap(self) -> float:
        """Return the shortest gap in seconds between two slots, ignoring the window. Samples the first slots of a year.

        A jitter shorter than this keeps the slots in order.
        """
        if isinstance(self.pattern, Every):
            return self.pattern.total
        free = replace(self, start_at=None, end_at=None)
        year = itertools.takewhile(lambda slot: slot < _SAMPLE + _YEAR, free._walk(_SAMPLE))
        gaps = (later - earlier for earlier, later in itertools.pairwise(itertools.islice(year, _SAMPLES)))
        return min(gaps, default=_YEAR).total_seconds()

    def missed(self, first: datetime, now: datetime, n: int) -> list[datetime]:
        """Return the latest ``n`` slots from ``first`` on that are due ``now``, in order.

        Returns ``first`` alone if no slot is due: an operator may have set it to a time that is not a slot.
        """
        due = (slot for slot in self._walk(now, back=True) if self.due_at(slot) <= now)
        latest = list(itertools.islice(itertools.takewhile(lambda slot: slot >= first, due), n))
        return latest[::-1] or [first]

    def _walk(self, moment: datetime, *, back: bool = False) -> Iterator[datetime]:
        """Yield the slots after ``moment``; with ``back``, those up to it, the latest first."""
        if back and self.end_at is not None:
            moment = min(moment, self.end_at)
        elif not back and self.start_at is not None:
            moment = max(moment, self.start_at - _TICK)
        if isinstance(self.pattern, Every):
            slots = self._intervals(timedelta(seconds=self.pattern.total), moment, back=back)
        else:
            slots = self._wall_clock(self.pattern.fields, moment, back=back)
        return itertools.takewhile(self.is_within, slots)

    def _intervals(self, step: timedelta, moment: datetime, *, back: bool) -> Iterator[datetime]:
        anchor = self.anchor or self.start_at or moment.replace(microsecond=0)
        slot = anchor + ((moment - anchor) // step + (not back)) * step
        while True:
            yield slot.astimezone(UTC)
            try:
                slot += -step if back else step
            except OverflowError:
                return

    def _wall_clock(self, fields: str, moment: datetime, *, back: bool) -> Iterator[datetime]:
        """Yield slots of a cron expression. The order of wall-clock times is that of their instants."""
        local = moment.astimezone(self.zone)
        start = local.replace(tzinfo=None, microsecond=0, fold=0)
        if back:
            # A wall-clock time that occurs twice is run the first time only.
            again = _offset(local.replace(fold=0)) - _offset(local.replace(fold=1)) if local.fold else timedelta()
            start += again + _SECOND
        local_times = iterator(fields, start)
        previous: datetime | None = None
        try:
            for local_time in local_times.all_prev(datetime) if back else local_times.all_next(datetime):
                slot = self._instant(local_time)
                if slot is not None and slot != previous and (slot <= moment) is back:
                    yield slot
                    previous = slot
        except OverflowError:
            return

    def _instant(self, local_time: datetime) -> datetime | None:
        local = local_time.replace(tzinfo=self.zone, fold=0)
        slot = local.astimezone(UTC)
        if slot.astimezone(self.zone).replace(tzinfo=None, fold=0) == local_time:
            return slot
        return None if self.skip_nonexistent else self._end_of_gap(local)

    def _end_of_gap(self, local: datetime) -> datetime:
        """Return the first instant after the gap that contains a wall-clock time, to the second."""
        early, late = (local.replace(fold=fold).astimezone(UTC).replace(microsecond=0) for fold in (1, 0))
        before = _offset(early.astimezone(self.zone))
        while late - early > _SECOND:
            middle = early + (late - early) // _SECOND // 2 * _SECOND
            if _offset(middle.astimezone(self.zone)) == before:
                early = middle
            else:
                late = middle
        return late


def parse_timezone(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name. Raises ValueError."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise ValueError(f"timezone is {name!r}; allowed: an IANA name like 'UTC' or 'Europe/Berlin'.") from None


def _offset(local: datetime) -> timedelta:
    offset = local.utcoffset()
    assert offset is not None
    return offset
