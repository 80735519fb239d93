"""The only task of the machine: its outcome is the one that the machine has set."""

from __future__ import annotations

from horsies_django import Discard, Retry, Snooze, TaskError, TaskResult, task

#: The seconds of every Snooze and every ``Retry(after=…)``.
LATER = 100.0

outcome = ["ok"]


@task
def act() -> object:
    match outcome[0]:
        case "ok":
            return 1
        case "snooze":
            raise Snooze(LATER)
        case "retry":
            raise Retry(after=LATER)
        case "retry by policy":
            raise Retry
        case "discard":
            raise Discard("no use")
        case "raise":
            raise RuntimeError("out of the body")
        case "unstorable":
            return object()
        case code:
            return TaskResult(err=TaskError(error_code=code, message="as requested"))
