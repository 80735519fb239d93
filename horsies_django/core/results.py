"""The results of tasks: :class:`TaskResult`, :class:`TaskError`, and the library's error codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from .exceptions import TaskFailed, WaitTimeout

T = TypeVar("T")
E = TypeVar("E")


class OperationalCode(StrEnum):
    """The task failed while it ran."""

    UNHANDLED_EXCEPTION = "UNHANDLED_EXCEPTION"
    TASK_EXCEPTION = "TASK_EXCEPTION"
    WORKER_CRASHED = "WORKER_CRASHED"
    BROKER_ERROR = "BROKER_ERROR"
    WORKER_RESOLUTION_ERROR = "WORKER_RESOLUTION_ERROR"
    WORKER_SERIALIZATION_ERROR = "WORKER_SERIALIZATION_ERROR"
    WORKER_ROW_UNREADABLE = "WORKER_ROW_UNREADABLE"
    RESULT_DESERIALIZATION_ERROR = "RESULT_DESERIALIZATION_ERROR"


class ContractCode(StrEnum):
    """A call or its result violates the task's contract."""

    ARGUMENT_TYPE_MISMATCH = "ARGUMENT_TYPE_MISMATCH"
    RETURN_TYPE_MISMATCH = "RETURN_TYPE_MISMATCH"
    PAYLOAD_MISMATCH = "PAYLOAD_MISMATCH"
    STEP_MISMATCH = "STEP_MISMATCH"


class RetrievalCode(StrEnum):
    """The result could not be retrieved. The code says nothing about the task itself."""

    WAIT_TIMEOUT = "WAIT_TIMEOUT"
    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    RESULT_NOT_AVAILABLE = "RESULT_NOT_AVAILABLE"
    RESULT_NOT_READY = "RESULT_NOT_READY"


class OutcomeCode(StrEnum):
    """The task ended in another way than by its own value or error."""

    TASK_CANCELLED = "TASK_CANCELLED"
    ABOUT_ROW_GONE = "ABOUT_ROW_GONE"
    TASK_EXPIRED = "TASK_EXPIRED"
    TASK_TIMEOUT = "TASK_TIMEOUT"
    TASK_RETRY = "TASK_RETRY"
    TASK_DISCARDED = "TASK_DISCARDED"
    STEP_FAILED = "STEP_FAILED"


#: Every code of the library. Codes of users must differ from these.
RESERVED_CODES: Final[frozenset[str]] = frozenset(
    code.value for family in (OperationalCode, ContractCode, RetrievalCode, OutcomeCode) for code in family
)


@dataclass(frozen=True, kw_only=True, repr=False)  # with slots, TaskError[int](…) would raise before Python 3.13
class TaskError(Generic[T]):
    """Why a task has no ok value.

    ``error_code`` is one of the library's codes or the user's own; ``exception`` holds ``type``, ``message`` and
    ``traceback`` of the exception behind it, where there was one.
    """

    error_code: str
    message: str = ""
    data: T | None = None
    exception: Mapping[str, str] | None = None

    def __repr__(self) -> str:
        data = "" if self.data is None else f", data=<{type(self.data).__name__}>"
        return f"TaskError(error_code={str(self.error_code)!r}, message={self.message!r}{data})"

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form for a row's ``result``."""
        stored = {"error_code": str(self.error_code), "message": self.message, "data": self.data}
        return stored | {"exception": dict(self.exception)} if self.exception else stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TaskError[Any]:
        """Return the error from the JSON form in a row's ``result``."""
        return TaskError(
            error_code=stored["error_code"],
            message=stored.get("message", ""),
            data=stored.get("data"),
            exception=stored.get("exception"),
        )


class _Unset:
    def __repr__(self) -> str:
        return "unset"


_UNSET: Final = _Unset()


class TaskResult(Generic[T, E]):
    """Exactly one of an ok value and an error.

    >>> TaskResult(ok=3).unwrap()
    3
    >>> TaskResult(err=TaskError(error_code="SMTP_DOWN")).is_err()
    True
    """

    __slots__ = ("_err", "_ok")

    def __init__(self, *, ok: T | _Unset = _UNSET, err: E | None = None) -> None:
        if isinstance(ok, _Unset) == (err is None):
            raise TypeError("A TaskResult takes exactly one of ok= and err=.")
        self._ok = ok
        self._err = err

    def is_ok(self) -> bool:
        """Whether there is an ok value."""
        return self._err is None

    def is_err(self) -> bool:
        """Whether there is an error."""
        return self._err is not None

    @property
    def ok(self) -> T | None:
        """The ok value; None if there is an error."""
        return None if isinstance(self._ok, _Unset) else self._ok

    @property
    def err(self) -> E | None:
        """The error; None if there is an ok value."""
        return self._err

    @property
    def ok_value(self) -> T:
        """The ok value; raises :class:`~horsies_django.exceptions.TaskFailed` if there is an error."""
        return self.unwrap()

    @property
    def err_value(self) -> E:
        """The error; raises ValueError if there is an ok value."""
        if self._err is None:
            raise ValueError("This result is ok: it has no error.")
        return self._err

    def unwrap(self) -> T:
        """Return the ok value, or raise ``TaskFailed`` with the error; ``WaitTimeout`` if a wait for it ran out."""
        if not isinstance(self._ok, _Unset):
            return self._ok
        if isinstance(self._err, TaskError):
            kind = WaitTimeout if self._err.error_code == RetrievalCode.WAIT_TIMEOUT else TaskFailed
            raise kind(f"{self._err.error_code}: {self._err.message}", self._err)
        raise TaskFailed(str(self._err))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskResult):
            return NotImplemented
        return bool(self._ok == other._ok and self._err == other._err)

    __hash__ = None  # type: ignore[assignment]  # an ok value may be unhashable

    def __repr__(self) -> str:
        # Without the value, which may be sensitive: logs and error trackers store a repr().
        if self.is_ok():
            return f"TaskResult(ok=<{type(self._ok).__name__}>)"
        shown = repr(self._err) if isinstance(self._err, TaskError) else f"<{type(self._err).__name__}>"
        return f"TaskResult(err={shown})"
