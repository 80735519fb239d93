"""When a task runs again: retry policies, and what they mean for a failed attempt.

Another attempt follows a failure if a retry is left and the policy in the task's row covers the failure. It follows
after the policy's delay or, for ``"function"``, after the one that the task's own function returns. A body that raises
``Retry`` asks for an attempt whatever the codes of the policy, after its own delay if it gives one. A body that raises
``Discard`` gets none.

``max_attempts`` and ``backoff`` are short forms of a policy. A row has the policy with which it was sent.
"""

from __future__ import annotations

import inspect
import json
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeGuard

from .annotations import bare_signature
from .exceptions import LONGEST_DELAY, Discard, Retry
from .results import ContractCode, OperationalCode
from .serialization import clean_text

if TYPE_CHECKING:
    from .options import DefaultOptions

logger = logging.getLogger("horsies_django")

#: ``(exception, task_result)`` or ``(context)`` to seconds, a timedelta, or None to give up.
Backoff: TypeAlias = (
    Callable[[BaseException | None, Any], float | timedelta | None] | Callable[[Any], float | timedelta | None]
)

MAX_RETRIES: Final = 999
MAX_INTERVAL: Final = 86_400.0
CODE_LENGTH: Final = 100

#: The value of a row whose sender wants a single attempt. Without any retry option it is NULL.
NO_RETRIES: Final[Mapping[str, Any]] = {}

#: The attempts of a task with a backoff but without ``max_attempts``.
DEFAULT_ATTEMPTS: Final = 3

#: The retries for ``raise Retry()`` if no number is set.
RETRIES_ON_DEMAND: Final = 2

#: In ``auto_retry_for``: every code except those that another attempt can't fix.
ANY_CODE: Final = "*"
_NOT_RETRYABLE: Final = frozenset(
    {OperationalCode.WORKER_RESOLUTION_ERROR, OperationalCode.WORKER_SERIALIZATION_ERROR, *ContractCode}
)


class ShortForm(StrEnum):
    """The strategies of short forms, which :class:`RetryPolicy` does not accept as plain texts."""

    CONSTANT = "constant"
    FUNCTION = "function"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Which failures are retried, how often, and after how many seconds.

    ``auto_retry_for`` has error codes and exception classes, which include their subclasses. A class is
    kept as its dotted path.

    A *fixed* policy has one interval for each retry. An *exponential* one has a single interval, which doubles with
    each retry up to ``max_delay_seconds``. ``jitter`` moves each delay by up to a quarter, both ways. All bad fields
    are named in one ValueError.

    A number of seconds as ``backoff`` makes a *constant* policy, whose only interval is each delay. A callable makes
    the policy of a *function*: its delays are those of an exponential one where the task's code does not run, as after
    a crash.

    >>> RetryPolicy.fixed([60, 300], auto_retry_for=["SMTP_DOWN"], jitter=False).delay(2)
    300.0
    >>> RetryPolicy.exponential(base_seconds=2, max_retries=5, auto_retry_for=["SMTP_DOWN"], jitter=False).delay(4)
    16.0
    """

    max_retries: int = 3
    intervals: tuple[float, ...] = (60.0, 300.0, 900.0)
    backoff_strategy: Literal["fixed", "exponential"] | ShortForm = "fixed"
    max_delay_seconds: float | None = None
    jitter: bool = True
    auto_retry_for: tuple[str, ...]

    def __post_init__(self) -> None:
        """Normalize sequences. Raises ValueError, which names every invalid field."""
        if isinstance(self.auto_retry_for, str | type):
            object.__setattr__(self, "auto_retry_for", (self.auto_retry_for,))
        for name in ("intervals", "auto_retry_for"):
            if isinstance(value := getattr(self, name), Iterable) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))
        if problems := [*self._problems_of_times(), *self._problems_of_codes()]:
            raise ValueError("RetryPolicy: " + " ".join(problems))
        object.__setattr__(self, "intervals", tuple(map(float, self.intervals)))
        object.__setattr__(self, "auto_retry_for", tuple(map(_as_text, self.auto_retry_for)))

    def _problems_of_times(self) -> Iterator[str]:
        if type(self.max_retries) is not int or not 1 <= self.max_retries <= MAX_RETRIES:
            yield f"max_retries is {self.max_retries!r}; allowed: a whole number from 1 to {MAX_RETRIES}."
        if self.backoff_strategy not in ("fixed", "exponential") and not isinstance(self.backoff_strategy, ShortForm):
            yield f"backoff_strategy is {self.backoff_strategy!r}; allowed: 'fixed' or 'exponential'."
        if self.max_delay_seconds is not None and not is_interval(self.max_delay_seconds):
            yield f"max_delay_seconds is {self.max_delay_seconds!r}; allowed: 1 to {MAX_INTERVAL:g}, or None."
        if not isinstance(self.jitter, bool):
            yield f"jitter is {self.jitter!r}; allowed: True or False."
        if not isinstance(self.intervals, tuple):
            yield f"intervals is {self.intervals!r}; allowed: a sequence of seconds."
            return
        for interval in self.intervals:
            if not (is_interval(interval) or (self.backoff_strategy is ShortForm.CONSTANT and is_delay(interval))):
                yield f"intervals has {interval!r}; allowed: 1 to {MAX_INTERVAL:g} seconds."
        if self.backoff_strategy == "fixed" and len(self.intervals) != self.max_retries:
            yield f"intervals has {len(self.intervals)} entries; allowed: one for each of {self.max_retries} retries."
        if self.backoff_strategy != "fixed" and len(self.intervals) != 1:
            yield f"intervals has {len(self.intervals)} entries; allowed: exactly one base interval."

    def _problems_of_codes(self) -> Iterator[str]:
        codes = self.auto_retry_for
        if not isinstance(codes, tuple) or not codes or not all(is_code(_as_text(code)) for code in codes):
            yield (
                f"auto_retry_for is {codes!r}; allowed: at least one code (1 to {CODE_LENGTH} characters) or exception"
                " class."
            )

    @classmethod
    def fixed(
        cls,
        intervals: Iterable[float] = (60, 300, 900),
        *,
        auto_retry_for: Iterable[str | type[BaseException]],
        jitter: bool = True,
    ) -> RetryPolicy:
        """Retry once after each of ``intervals`` (seconds)."""
        waits: Any = tuple(intervals) if isinstance(intervals, Iterable) else intervals
        retries = len(waits) if isinstance(waits, tuple) else 1
        return cls(max_retries=retries, intervals=waits, jitter=jitter, auto_retry_for=auto_retry_for)  # type: ignore[arg-type]  # __post_init__() normalizes it

    @classmethod
    def exponential(
        cls,
        base_seconds: float = 2,
        *,
        max_retries: int = 3,
        max_delay_seconds: float | None = 300,
        auto_retry_for: Iterable[str | type[BaseException]],
        jitter: bool = True,
    ) -> RetryPolicy:
        """Retry after ``base_seconds``, twice that, four times that …, at most ``max_delay_seconds``."""
        return cls(
            max_retries=max_retries,
            intervals=(base_seconds,),
            backoff_strategy="exponential",
            max_delay_seconds=max_delay_seconds,
            jitter=jitter,
            auto_retry_for=auto_retry_for,  # type: ignore[arg-type]  # __post_init__() normalizes it
        )

    @classmethod
    def of(
        cls, max_attempts: int | None, backoff: object, retry_policy: RetryPolicy | None, defaults: DefaultOptions
    ) -> RetryPolicy | None:
        """Return the policy of a task's options; None for a single attempt. ``defaults`` apply to options not set."""
        if retry_policy is not None:
            return retry_policy
        if isinstance(backoff, RetryPolicy):
            return backoff
        default = defaults.retry_policy if backoff is None else None
        if default is not None and max_attempts is None:
            return default
        backoff = defaults.backoff if backoff is None else backoff
        attempts = max_attempts or defaults.max_attempts or (1 if backoff is None else DEFAULT_ATTEMPTS)
        if attempts == 1:
            return None
        if default is not None:  # use its delays, but retry any failure, as max_attempts does
            return replace(default.with_retries(attempts - 1), auto_retry_for=(ANY_CODE,))
        if isinstance(backoff, int | float):
            seconds = min(backoff, LONGEST_DELAY.total_seconds())
            return cls.constant(seconds, max_retries=attempts - 1, auto_retry_for=[ANY_CODE])
        policy = cls.exponential(max_retries=attempts - 1, auto_retry_for=[ANY_CODE])
        return policy if backoff is None else replace(policy, backoff_strategy=ShortForm.FUNCTION)

    @classmethod
    def constant(
        cls, seconds: float, *, max_retries: int, auto_retry_for: Iterable[str | type[BaseException]]
    ) -> RetryPolicy:
        """Retry after exactly ``seconds`` each time."""
        return cls(
            max_retries=max_retries,
            intervals=(seconds,),
            backoff_strategy=ShortForm.CONSTANT,
            jitter=False,
            auto_retry_for=auto_retry_for,  # type: ignore[arg-type]  # __post_init__() normalizes it
        )

    def with_retries(self, count: int) -> RetryPolicy:
        """Return the policy with another number of retries. A fixed policy repeats its last interval."""
        if self.backoff_strategy != "fixed":
            return replace(self, max_retries=count)
        longer = (*self.intervals, *[self.intervals[-1]] * max(0, count - self.max_retries))
        return replace(self, max_retries=count, intervals=longer[:count])

    def covers(self, error_code: str, raised: BaseException | None = None) -> bool:
        """Whether this policy retries a failure with ``error_code``; ``raised`` is the exception behind it, if any."""
        if error_code in self.auto_retry_for:
            return True
        names = {ANY_CODE, *(_as_text(kind) for kind in type(raised).__mro__ if raised is not None)}
        return is_retryable(error_code) and not names.isdisjoint(self.auto_retry_for)

    def delay(self, retry: int) -> float:
        """Return the seconds to wait before the ``retry``-th retry, counted from 1."""
        seconds = self.planned(retry)
        if self.jitter:
            seconds *= random.uniform(0.75, 1.25)  # noqa: S311  # spreads load, guards nothing
        return min(seconds, self._longest)

    def planned(self, retry: int) -> float:
        """Return the seconds of :meth:`delay` without its jitter."""
        match self.backoff_strategy:
            case "fixed":
                seconds = self.intervals[min(retry, len(self.intervals)) - 1]
            case ShortForm.CONSTANT:
                seconds = self.intervals[0]
            case _:
                seconds = self.intervals[0] * 2.0 ** min(retry - 1, 60)
        return min(seconds, self._longest)

    @property
    def _longest(self) -> float:
        default = LONGEST_DELAY.total_seconds() if self.backoff_strategy is ShortForm.CONSTANT else MAX_INTERVAL
        return self.max_delay_seconds or default

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form for a row, for the reaper, which can't run the task's code."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> RetryPolicy:
        """Return the policy from the JSON form in a row."""
        values = dict(stored)
        if (strategy := values.get("backoff_strategy")) in list(ShortForm):
            values["backoff_strategy"] = ShortForm(strategy)
        return cls(**values)

    @classmethod
    def of_row(cls, stored: object) -> RetryPolicy | None:
        """Return a row's policy, of JSON or its text; None if it has none. Raises ValueError for a damaged one."""
        try:
            policy: Any = json.loads(stored) if isinstance(stored, str) else stored
            return None if policy is None or policy == NO_RETRIES else cls.from_json(policy)
        except (TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"The stored retry policy is invalid: {error}") from error

    @classmethod
    def read(cls, stored: object, task_id: object) -> RetryPolicy | None:
        """Return a row's policy; None for a damaged one, so that the task can still end."""
        try:
            return cls.of_row(stored)
        except ValueError as error:
            logger.error("damaged retry policy ignored id=%s error=%s", task_id, error)
            return None


class FailedRow(Protocol):
    """The columns of a task that has failed."""

    @property
    def task_id(self) -> object:
        """The task's id, for log lines."""

    @property
    def retry_policy(self) -> object:
        """The stored policy, as JSON or its text."""

    @property
    def retry_count(self) -> int:
        """The retries that it has used up."""

    @property
    def max_retries(self) -> int:
        """The retries that it may use up."""


def retrying_policy(row: FailedRow, code: str, raised: BaseException | None = None) -> RetryPolicy | None:
    """Return the policy by which another attempt follows a failure with this code; None if none follows.

    ``raised`` is the exception behind it, if the function raised one.
    """
    is_on_demand = isinstance(raised, Retry) and row.retry_policy is None
    allowed = row.max_retries or (RETRIES_ON_DEMAND if is_on_demand else 0)
    if isinstance(raised, Discard) or row.retry_count >= allowed:
        return None
    policy = RetryPolicy.read(row.retry_policy, row.task_id)
    if isinstance(raised, Retry):
        return policy or RetryPolicy.exponential(auto_retry_for=[ANY_CODE])
    return policy if policy is not None and policy.covers(code, raised) else None


def retry_delay(
    row: FailedRow, code: str, raised: BaseException | None, backoff: object, arguments: Sequence[object]
) -> float | None:
    """Return the seconds until the next attempt; None if there is none.

    ``backoff`` is the option of the task: a policy of a function calls it with these arguments, if it can be called.
    """
    policy = retrying_policy(row, code, raised)
    if policy is None:
        return None
    if isinstance(raised, Retry) and raised.after is not None:
        return raised.after
    if policy.backoff_strategy is not ShortForm.FUNCTION or not callable(backoff):
        return policy.delay(row.retry_count + 1)
    try:
        delay = backoff(*arguments)
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        return None if seconds is None else min(max(0.0, float(seconds)), LONGEST_DELAY.total_seconds())
    except BaseException:  # a sys.exit() here would end the thread and lose the result
        logger.exception("backoff raised id=%s: no retry", row.task_id)
        return None


def takes_context(backoff: Callable[..., object]) -> bool:
    """Whether a ``backoff`` takes one argument, the context; False if it takes the exception and the result.

    Raises TypeError if it takes neither one nor two arguments, or is a coroutine function.
    """
    if inspect.iscoroutinefunction(backoff):
        raise TypeError("it is a coroutine function")
    try:
        signature = bare_signature(backoff)
    except ValueError:  # some callables in C have none
        return False
    try:
        signature.bind(None, None)
    except TypeError:
        signature.bind(None)
        return True
    return False


def is_retryable(error_code: str) -> bool:
    """Whether another attempt may fix a failure with this code. A policy can name the others, too."""
    return error_code not in _NOT_RETRYABLE


def _as_text(code: object) -> object:
    """Return an exception class as its dotted path, and an enumerated code as plain text."""
    if isinstance(code, type) and issubclass(code, BaseException):
        return f"{code.__module__}.{code.__qualname__}"
    return str(code) if isinstance(code, str) else code


def is_code(code: object) -> bool:
    """Whether a row can hold ``code`` as an error code."""
    return isinstance(code, str) and 0 < len(code) <= CODE_LENGTH and code == clean_text(code)


def is_delay(value: object) -> TypeGuard[float]:
    """Whether these seconds are a valid delay of a constant policy."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= LONGEST_DELAY.total_seconds()  # type: ignore[operator]  # a number


def is_interval(value: object) -> TypeGuard[float]:
    """Whether these seconds are a valid interval of a policy."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= MAX_INTERVAL
