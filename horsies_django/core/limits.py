"""Limits that a task or a queue declares: how many run at once, and how many start per period."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self, TypeAlias

from .compat import FrameworkTask
from .registry import registry

#: A format string over the arguments, or a callable that returns a text; None means no limit for the call.
ConcurrencyKey: TypeAlias = str | Callable[..., str | None]

_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_FORM: Final = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{0,6})([smhd])\s*(?:,\s*(\d{1,9})\s*)?")

#: Seconds by which a bucket's last use may be later than now: transactions may start in one order and take tokens in
#: another. A bucket that was used later than that was used before the clock was set back.
CLOCK_STEP: Final = 10.0

RATE_ALLOWED: Final = "a count from 1 on, a slash and s, m, h or d, like '100/m'; with a burst: '100/m, 10'"

#: The bounds of the tokens in a bucket.
TOKEN_RANGE: Final = (-1e10, 1e10)


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit: ``count`` starts per ``seconds``, spread evenly, with up to ``burst`` at once after a pause.

    It is a bucket of ``burst`` tokens that refills at that rate: in any period of ``t`` seconds at most
    ``burst + count / seconds * t`` tasks start.

    >>> Rate.parse("100/m"), Rate.parse("1/10s, 3")
    (Rate(count=100, seconds=60, burst=100), Rate(count=1, seconds=10, burst=3))
    """

    count: int
    seconds: int
    burst: int

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse a rate. Without a burst, the burst is the count. Raises ValueError if it is invalid."""
        match = _FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"{text!r} is not a rate; allowed: {RATE_ALLOWED}.")
        count, units, burst = int(match[1]), int(match[2] or 1), int(match[4] or match[1])
        if not (count and units and burst):
            raise ValueError(f"{text!r} is not a rate; allowed: {RATE_ALLOWED}.")
        return cls(count, units * _SECONDS[match[3]], burst)

    def __str__(self) -> str:
        units = {seconds: unit for unit, seconds in _SECONDS.items()}
        unit = max(seconds for seconds in units if self.seconds % seconds == 0)
        per = f"{self.count}/{self.seconds // unit if self.seconds > unit else ''}{units[unit]}"
        return per if self.burst == self.count else f"{per}, {self.burst}"

    @property
    def per_second(self) -> float:
        """The tokens per second."""
        return self.count / self.seconds

    def tokens(self, left: float | None, elapsed: float | None) -> float:
        """Return the tokens ``elapsed`` seconds after there were ``left``; None for ``elapsed`` means never used.

        The bucket is at most ``burst`` below empty. One that was last used more than :data:`CLOCK_STEP` in the future
        counts as never used.
        """
        if left is None or elapsed is None or elapsed < -CLOCK_STEP:
            return float(self.burst)
        gathered = max(left, -float(self.burst)) + max(0.0, elapsed) * self.per_second
        return min(self.burst, gathered)

    def wait(self, tokens: float) -> float:
        """Return the seconds until one token is available."""
        return max(0.0, (1 - tokens) / self.per_second)


#: The maximum length of a limit key with its scope, in characters.
LENGTH: Final = 255


class LimitTerms(NamedTuple):
    """The limits of one task."""

    max_concurrency: int | None
    rate: str | None

    def __bool__(self) -> bool:
        """Whether they limit anything."""
        return self.max_concurrency is not None or self.rate is not None


def terms_of(task: FrameworkTask[..., Any]) -> LimitTerms:
    """Return the limits that a task declares; a task of another backend declares none."""
    is_single = getattr(task, "one_at_a_time", None) is not None
    return LimitTerms(1 if is_single else getattr(task, "max_concurrency", None), getattr(task, "rate_limit", None))


def declared_terms(path: str | None) -> LimitTerms | None:
    """Return the limits that this process's code declares for the task of that name; None if it has no such task."""
    task = None if path is None else registry.tasks.get(path)
    return None if task is None else terms_of(task)
