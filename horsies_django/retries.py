"""Whether a failed attempt is followed by another one, and how long after it."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from .results import OperationalCode

logger = logging.getLogger("horsies_django")

MAX_RETRIES: Final = 20
MAX_INTERVAL: Final = 86_400.0

#: In ``auto_retry_for``: every code, but for those that another attempt can't mend (S4-29).
ANY_CODE: Final = "*"
_HOPELESS: Final = frozenset({OperationalCode.WORKER_RESOLUTION_ERROR, OperationalCode.WORKER_SERIALIZATION_ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Which error codes are retried, how often, and after how many seconds (S4-26 … S4-31).

    A *fixed* policy has one interval for each retry. An *exponential* one has a single interval, which doubles with
    each retry up to ``max_delay_seconds``. ``jitter`` moves each delay by up to a quarter, both ways. All bad fields
    are named in one ValueError.

    >>> RetryPolicy.fixed([60, 300], auto_retry_for=["SMTP_DOWN"], jitter=False).delay(2)
    300.0
    >>> RetryPolicy.exponential(base_seconds=2, max_retries=5, auto_retry_for=["SMTP_DOWN"], jitter=False).delay(4)
    16.0
    """

    max_retries: int = 3
    intervals: tuple[float, ...] = (60.0, 300.0, 900.0)
    backoff_strategy: Literal["fixed", "exponential"] = "fixed"
    max_delay_seconds: float | None = None
    jitter: bool = True
    auto_retry_for: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "intervals", tuple(map(float, self.intervals)))
        codes = [self.auto_retry_for] if isinstance(self.auto_retry_for, str) else self.auto_retry_for
        object.__setattr__(self, "auto_retry_for", tuple(map(str, codes)))
        if problems := list(self._problems()):
            raise ValueError("RetryPolicy: " + " ".join(problems))

    def _problems(self) -> Iterable[str]:
        if not (isinstance(self.max_retries, int) and 1 <= self.max_retries <= MAX_RETRIES):
            yield f"max_retries is {self.max_retries!r}; allowed: a whole number from 1 to {MAX_RETRIES}."
        for interval in self.intervals:
            if not 1 <= interval <= MAX_INTERVAL:
                yield f"intervals has {interval:g}; allowed: 1 to {MAX_INTERVAL:g} seconds."
        if self.backoff_strategy not in ("fixed", "exponential"):
            yield f"backoff_strategy is {self.backoff_strategy!r}; allowed: 'fixed' or 'exponential'."
        if self.backoff_strategy == "fixed" and len(self.intervals) != self.max_retries:
            yield f"intervals has {len(self.intervals)} entries; allowed: one for each of {self.max_retries} retries."
        if self.backoff_strategy == "exponential" and len(self.intervals) != 1:
            yield f"intervals has {len(self.intervals)} entries; allowed: exactly one base interval."
        if self.max_delay_seconds is not None and not 1 <= self.max_delay_seconds <= MAX_INTERVAL:
            yield f"max_delay_seconds is {self.max_delay_seconds!r}; allowed: 1 to {MAX_INTERVAL:g}, or None."
        if not self.auto_retry_for or not all(self.auto_retry_for):
            yield f"auto_retry_for is {self.auto_retry_for!r}; allowed: at least one error code."

    @classmethod
    def fixed(
        cls,
        intervals: Iterable[float] = (60, 300, 900),
        *,
        auto_retry_for: Iterable[str],
        jitter: bool = True,
    ) -> RetryPolicy:
        """Retry once after each of ``intervals`` (seconds)."""
        waits = tuple(intervals)
        return cls(max_retries=len(waits), intervals=waits, jitter=jitter, auto_retry_for=tuple(_codes(auto_retry_for)))

    @classmethod
    def exponential(
        cls,
        base_seconds: float = 2,
        *,
        max_retries: int = 3,
        max_delay_seconds: float | None = 300,
        auto_retry_for: Iterable[str],
        jitter: bool = True,
    ) -> RetryPolicy:
        """Retry after ``base_seconds``, twice that, four times that …, at most ``max_delay_seconds`` (S4-26, S4-27)."""
        return cls(
            max_retries=max_retries,
            intervals=(base_seconds,),
            backoff_strategy="exponential",
            max_delay_seconds=max_delay_seconds,
            jitter=jitter,
            auto_retry_for=tuple(_codes(auto_retry_for)),
        )

    def covers(self, error_code: str) -> bool:
        """Whether ``error_code`` is one that this policy retries."""
        return error_code in self.auto_retry_for or (ANY_CODE in self.auto_retry_for and error_code not in _HOPELESS)

    def delay(self, retry: int) -> float:
        """Return the seconds to wait before the ``retry``-th retry, counted from 1."""
        if self.backoff_strategy == "fixed":
            seconds = self.intervals[min(retry, len(self.intervals)) - 1]
        else:
            seconds = self.intervals[0] * 2 ** (retry - 1)
        if self.jitter:
            seconds *= random.uniform(0.75, 1.25)  # noqa: S311  # spreads load, guards nothing
        return min(seconds, self.max_delay_seconds or MAX_INTERVAL)

    def as_json(self) -> dict[str, Any]:
        """Return the form that is stored in a row, for the reaper, which has no task code to ask."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> RetryPolicy:
        """Read the form that is stored in a row."""
        return cls(**stored)

    @classmethod
    def read(cls, stored: object, task_id: object) -> RetryPolicy | None:
        """Read a row's policy; one that was damaged counts as none, for the row has to end all the same."""
        if stored is None:
            return None
        try:
            return cls.from_json(json.loads(stored) if isinstance(stored, str) else stored)  # type: ignore[arg-type]
        except (TypeError, ValueError, KeyError) as error:
            logger.error("task id=%s has a retry policy that can't be read: no retry. %s", task_id, error)
            return None


def _codes(codes: Iterable[str]) -> Iterable[str]:
    return (codes,) if isinstance(codes, str) else codes
