"""Builds the results that handles return: a stored result, or an error result that says why there is none.

None of these functions raises.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from django.db import Error

from ..core.results import OperationalCode, RetrievalCode, TaskError, TaskResult
from ..core.serialization import clean_text, decode
from ..db.errors import primary_message

Result = TaskResult[Any, TaskError[Any]]


def read(text: str, typed: bool) -> Result:
    """Parse a stored result from JSON text."""
    try:
        return restore(json.loads(text), typed)
    except (ValueError, RecursionError) as error:
        return _unreadable(error)


def restore(stored: Any, typed: bool) -> Result:
    """Decode a stored result from parsed JSON."""
    try:
        if "err" in stored:
            return TaskResult(err=_with_data(TaskError.from_json(stored["err"]), typed))
        return TaskResult(ok=decode(stored["ok"], typed=typed))
    except Exception as error:  # noqa: BLE001  # a damaged value may raise anything; the caller gets a result
        return _unreadable(error)


def not_found(what: str, answer: Error | None) -> Result:
    """Return an error result for a missing row or, if ``answer`` is an error, for a failed query."""
    if answer is None:
        return error(RetrievalCode.TASK_NOT_FOUND, f"There is no {what}.")
    reason = f"{type(answer).__name__}: {clean_text(primary_message(answer))}"
    return error(OperationalCode.BROKER_ERROR, f"The database can't be asked: {reason}.")


def timed_out(what: str, timeout: float | None, status: str | None) -> Result:
    """Return an error result for a wait of ``timeout`` seconds that timed out.

    ``status`` is the last known status, None if the database has not answered.
    """
    last = f"; it was {status}" if status is not None else "; the database has not answered"
    message = f"The {what} had not ended after {timeout:g} seconds{last}."
    return TaskResult(err=TaskError(error_code=RetrievalCode.WAIT_TIMEOUT, message=message, data={"status": status}))


def ok(value: Any) -> Result:
    """Return an ok result."""
    return TaskResult(ok=value)


def error(code: str, message: str) -> Result:
    """Return an error result."""
    return TaskResult(err=TaskError(error_code=code, message=message))


def _unreadable(problem: Exception) -> Result:
    return error(OperationalCode.RESULT_DESERIALIZATION_ERROR, f"The stored result can't be read: {problem!r}.")


def _with_data(failure: TaskError[Any], typed: bool) -> TaskError[Any]:
    try:
        return replace(failure, data=decode(failure.data, typed=typed))
    except Exception:  # noqa: BLE001  # keep the error even if its data can't be decoded
        return failure
