"""The time of a node parted into waiting and running, and the words for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...core.durations import format_brief, format_duration
from ..ages import counted
from ..drawn_time import drawn_until
from ..formatting import fill

#: A stretch of time in which a node ran, from its start to its end.
Run = tuple[datetime, datetime]

#: Waits below this, or below this share of the whole, are not worth a word beside a run.
_SHORT_WAIT = timedelta(milliseconds=50)
_SMALL_SHARE = 0.005

_FORMATS: Final = {"full": format_duration, "brief": format_brief}


class NodeTimes(NamedTuple):
    """The time of a node or a box: from when its dependencies allowed it to start, to its end or to now.

    ``runs`` are the stretches in which it ran, in order and apart; None if they are unknown. In the rest it waited: for
    a worker, a limit, a retry, an event, or a time.
    """

    began: datetime
    ended: datetime
    runs: tuple[Run, ...] | None = None
    is_open: bool = False

    @classmethod
    def of(
        cls, began: datetime | None, ended: datetime | None, now: datetime | None, runs: Sequence[Run] | None
    ) -> NodeTimes | None:
        """Return the times of a node that may be open; None if it has not begun. Accepts any order of times."""
        last = ended or now or began
        if began is None or last is None:
            return None
        last = max(began, last)
        return cls(began, last, None if runs is None else clip_runs(runs, began, last), ended is None)

    @property
    def took(self) -> timedelta:
        """The whole time."""
        return self.ended - self.began

    @property
    def ran(self) -> timedelta | None:
        """The time of its runs, if known."""
        return None if self.runs is None else run_time(self.runs)

    @property
    def waited(self) -> timedelta | None:
        """The time without a run, if known."""
        return None if self.ran is None else self.took - self.ran

    @property
    def is_running(self) -> bool:
        """Whether it is running now."""
        return self.is_open and bool(self.runs) and self.runs is not None and self.runs[-1][1] >= self.ended

    def words(self, form: str = "full", tag: str = "") -> SafeString | str:
        """Return the time waited and the time run: ``waited 3 s, ran 12 s``; the whole time if they are unknown.

        ``form`` is *full* or *brief*. With ``tag`` the browser counts the time that still grows.
        """
        waited, ran = self.waited, self.ran
        tag = tag if self.is_open else ""
        if ran is None or waited is None:
            return _shown(self.took, form, tag)
        if self.is_running:
            running = self.growing_words(form, tag)
            return running if _is_short(waited, ran) else fill("%s, %s", _waited(waited, form), running)
        if self.is_open:
            waiting = self.growing_words(form, tag)
            return fill("%s, %s", waiting, _ran(ran, form)) if ran else waiting
        return time_words(waited, ran, form)

    def growing_words(self, form: str = "full", tag: str = "") -> SafeString | str:
        """Return the part of the words that still grows, of times that are open."""
        if self.ran is None or self.waited is None:
            return _shown(self.took, form, tag)
        if self.is_running:
            return fill(_("running %s"), _shown(self.ran, form, tag))
        return fill(_("waiting %s"), _shown(self.waited, form, tag))

    def drawn(self, until: datetime | None = None) -> NodeTimes:
        """Return the times to draw: what has not ended goes on up to ``until``, by default as its own length asks."""
        until = until or drawn_until(self.began, self.ended)
        if not self.is_open or until <= self.ended:
            return self
        runs = (*self.runs[:-1], (self.runs[-1][0], until)) if self.runs and self.is_running else self.runs
        return self._replace(ended=until, runs=runs)

    def parts(self) -> Iterator[tuple[bool, datetime, datetime]]:
        """Yield its stretches in order: whether it ran in them, their start and their end."""
        at = self.began
        for start, end in self.runs if self.runs is not None else ((self.began, self.ended),):
            if start > at:
                yield False, at, start
            yield True, start, end
            at = end
        if at < self.ended:
            yield False, at, self.ended


def time_words(waited: timedelta, ran: timedelta, form: str = "full", growing: str = "") -> SafeString | str:
    """Return the time waited and the time run in words; a wait that is short beside the run is left out.

    ``growing`` is *waited* or *ran* if the browser counts that time.
    """
    waits = _waited(waited, form, "span" if growing == "waited" else "")
    if not ran:
        return waits
    runs = _ran(ran, form, "span" if growing == "ran" else "")
    return runs if _is_short(waited, ran) else fill("%s, %s", waits, runs)


def _is_short(waited: timedelta, ran: timedelta) -> bool:
    return waited < _SHORT_WAIT or waited < _SMALL_SHARE * (waited + ran)


def _waited(time: timedelta, form: str, tag: str = "") -> SafeString:
    return fill(_("waited %s"), _shown(time, form, tag))


def _ran(time: timedelta, form: str, tag: str = "") -> SafeString:
    return fill(_("ran %s"), _shown(time, form, tag))


def _shown(time: timedelta, form: str, tag: str) -> SafeString | str:
    return counted(time, form, tag) if tag else _FORMATS[form](time)


def merge_runs(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return stretches that cover the same time in order, none touching another."""
    merged: list[Run] = []
    for start, end in sorted(runs):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def clip_runs(runs: Iterable[Run], began: datetime, ended: datetime) -> tuple[Run, ...]:
    """Return the parts of these stretches between two times, merged."""
    inside = ((max(start, began), min(end, ended)) for start, end in runs)
    return merge_runs((start, end) for start, end in inside if start < end)


def run_time(runs: Iterable[Run]) -> timedelta:
    """Return the sum of stretches that are apart."""
    return sum((end - start for start, end in runs), timedelta())
