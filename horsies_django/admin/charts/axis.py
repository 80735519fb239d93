"""Axes with round numbers: counts, durations and times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.utils.formats import date_format, number_format
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from ...core.numbers import fill_numbers, format_number

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400

#: Round steps of durations above a second, in seconds.
_LONG_STEPS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE * number for number in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * number for number in (1, 2, 3, 6, 12)),
)


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear scale from 0 to ``top``, and its ticks: values with their labels, 0 included."""

    top: float
    ticks: tuple[tuple[float, str], ...]

    def share(self, value: float) -> float:
        """Return the height of a value as a share of the axis, 0 to 1."""
        return min(1.0, max(0.0, value) / self.top)


def count_axis(highest: float, intervals: int) -> Axis:
    """Return an axis of whole numbers up to at least ``highest``, with at most ``intervals`` intervals."""
    step = max(1, round(_decimal_step(highest / intervals)))
    return _axis(highest, step, lambda value: format_number(value, 0))


def duration_axis(highest: float, intervals: int) -> Axis:
    """Return an axis of seconds up to at least ``highest``, with at most ``intervals`` intervals."""
    least = highest / intervals
    if least <= 1:
        step = max(_decimal_step(least), 0.001)
    else:
        step = next((step for step in _LONG_STEPS if step >= least), _DAY * _decimal_step(least / _DAY))
        step = max(step, _DAY) if step > _LONG_STEPS[-1] else step
    top = _top(highest, step)
    return _axis(highest, step, lambda value: _duration_label(value, step, top))


def _axis(highest: float, step: float, label: Callable[[float], str]) -> Axis:
    top = _top(highest, step)
    return Axis(top, tuple((at * step, label(at * step)) for at in range(round(top / step) + 1)))


def _top(highest: float, step: float) -> float:
    return max(1, math.ceil(highest / step - 1e-9)) * step


def _decimal_step(least: float) -> float:
    """Return the lowest of 1, 2 and 5 times a power of ten that is not below ``least``."""
    if least <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _duration_label(seconds: float, step: float, top: float) -> str:
    """Return a multiple of ``step`` in the largest unit in which every tick is a whole number."""
    if not seconds:
        return "0"
    if top < 1:
        return _("%d ms") % round(seconds * 1_000)
    for length, words in ((_DAY, _("%d d")), (_HOUR, _("%d h")), (_MINUTE, _("%d min"))):
        if step >= length and not step % length:
            return fill_numbers(words, round(seconds / length))
    return _("%s s") % number_format(seconds, 0 if step >= 1 else 1 if step >= 0.1 else 2)


def time_label(moment: datetime, length: timedelta) -> str:
    """Return the start of a bucket of this length in the reader's zone, short but unambiguous in its chart."""
    if length < timedelta(hours=1):
        return date_format(localtime(moment), "H:i")
    return date_format(localtime(moment), "D H:i" if length < timedelta(hours=2) else "D j M, H:i")


def time_ticks(starts: Sequence[datetime], length: timedelta) -> list[tuple[int, str]]:
    """Return the positions and labels of round times: each ten minutes, each four hours, or each midnight."""
    ticks = []
    for at, start in enumerate(starts):
        moment = localtime(start)
        if length < timedelta(hours=1):
            if not moment.minute % 10:
                ticks.append((at, date_format(moment, "H:i")))
        elif length < timedelta(hours=2):
            if not moment.hour % 4:
                ticks.append((at, date_format(moment, "H:i" if moment.hour else "D j")))
        elif moment.hour < length / timedelta(hours=1):
            ticks.append((at, date_format(moment, "D")))
    return ticks
