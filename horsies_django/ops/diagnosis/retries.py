"""Retries in words: a task's retry policy, and why a failed task was not retried.

The reason follows the order in which a worker decides (see :mod:`horsies_django.worker.result_mapping`), and the reaper
after a crash.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final

from django.utils.translation import gettext as _

from ...core.numbers import format_duration
from ...core.results import OperationalCode, OutcomeCode
from ...core.retry import ANY_CODE, MAX_RETRIES, NO_RETRIES, RETRIES_ON_DEMAND, RetryPolicy, ShortForm, is_retryable
from ...core.status import AttemptOutcome, TaskStatus
from ...models import Task, TaskAttempt

#: How many codes and delays of a policy are named.
_NAMED: Final = 5


def why_not_retried(task: Task, attempt: TaskAttempt | None) -> str:
    """Return a translated sentence that says why a FAILED task was not retried; empty if that can't be told.

    ``attempt`` is its last attempt, if it has one. Reads nothing from the database.

    >>> why_not_retried(Task(status="FAILED", retry_count=2, max_retries=2), None)
    'Not retried: 3 of 3 attempts used.'
    """
    if task.status != TaskStatus.FAILED:
        return ""
    reason = _reason(task, attempt)
    return _("Not retried: %s.") % reason if reason else ""


def _reason(task: Task, attempt: TaskAttempt | None) -> str:
    code = task.error_code or (attempt.error_code if attempt else "")
    if code == OutcomeCode.TASK_DISCARDED:
        return _("Discard was raised")
    if code == OperationalCode.WORKER_ROW_UNREADABLE:
        return _("its row can't be read")
    # Without a policy only Retry leads to another attempt. One with a cause has the code of the cause.
    is_on_demand = code == OutcomeCode.TASK_RETRY or (task.retry_policy is None and task.retry_count > 0)
    allowed = task.max_retries or (RETRIES_ON_DEMAND if is_on_demand and task.retry_policy is None else 0)
    if not allowed:
        return _("max_attempts is 1")
    if task.retry_count >= allowed:
        return _("%(used)d of %(allowed)d attempts used") % {"used": task.retry_count + 1, "allowed": allowed + 1}
    try:
        policy = RetryPolicy.of_row(task.retry_policy)
    except ValueError:
        return _("the stored retry policy is invalid")
    if policy is None and not is_on_demand:
        return _("it has no retry policy")
    return _(" or ").join(_possible_reasons(task, attempt, policy, code))


def _possible_reasons(task: Task, attempt: TaskAttempt | None, policy: RetryPolicy | None, code: str) -> Iterator[str]:
    """Yield what may have prevented a retry although attempts are left. Without doubt there is one."""
    if policy is not None and code != OutcomeCode.TASK_RETRY:
        exception_class = attempt.exception_class if attempt else ""
        is_covered = _is_covered(policy, code, exception_class)
        if not is_covered:
            yield _not_covered(policy, code, exception_class)
        if is_covered is False:
            return
        is_lost = attempt is not None and attempt.outcome == AttemptOutcome.WORKER_FAILURE  # no code of the task ran
        if not is_lost and policy.backoff_strategy is ShortForm.FUNCTION:
            yield _("its backoff function returned no delay")
    if task.good_until is not None:
        yield _("the next attempt would start after its deadline")


def _is_covered(policy: RetryPolicy, code: str, exception_class: str) -> bool | None:
    """Return whether a policy retries this failure; None if that depends on base classes that are unknown here."""
    if policy.covers(code):
        return True
    if not exception_class or not is_retryable(code):
        return False
    kind = _loaded_class(exception_class)
    if kind is not None:
        names = {f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__}
        return not names.isdisjoint(policy.auto_retry_for)
    if exception_class in policy.auto_retry_for:
        return True
    return None if any("." in listed for listed in policy.auto_retry_for) else False


def _loaded_class(path: str) -> type[BaseException] | None:
    """Return the exception class with this dotted path, if its module is loaded. Imports nothing."""
    module_name, _dot, name = path.rpartition(".")
    # Not with getattr, which may call the module's own __getattr__.
    value = getattr(sys.modules.get(module_name), "__dict__", {}).get(name)
    return value if isinstance(value, type) and issubclass(value, BaseException) else None


def _not_covered(policy: RetryPolicy, code: str, exception_class: str) -> str:
    if not is_retryable(code):
        return _("another attempt can't fix %s") % code
    kind = exception_class.removeprefix("builtins.").rpartition(".")[2]
    is_telling = not kind or code != OperationalCode.UNHANDLED_EXCEPTION
    names = f"{kind} ({code})" if kind and is_telling else kind or code
    listed = ", ".join(policy.auto_retry_for[:_NAMED]) + ("…" if len(policy.auto_retry_for) > _NAMED else "")
    return _("its retry policy covers %(listed)s, not %(names)s") % {"names": names, "listed": listed}


def describe_retry_policy(task: Task) -> str:
    """Describe how often a task is tried, after which errors and with which waits.

    The policy is the one in its row, with which it was sent.
    """
    if task.retry_policy is None:
        text = _("No retries: one attempt. A task that raises Retry is retried at most %d times.")
        return text % (task.max_retries or RETRIES_ON_DEMAND)
    if task.retry_policy == NO_RETRIES:
        return _("No retries: one attempt.")
    try:
        policy = RetryPolicy.of_row(task.retry_policy)
    except ValueError:
        policy = None
    if policy is None:
        return _("No retries: the stored policy is invalid.")
    retries = min(int(task.max_retries), MAX_RETRIES)
    if not retries:
        return _("No retries: one attempt.")
    attempts = _("Up to %d attempts.") % (task.max_retries + 1)
    delays = _describe_delays(policy, range(1, retries + 1))
    return f"{attempts} {_describe_errors(policy)} {delays}"


def _describe_errors(policy: RetryPolicy) -> str:
    if ANY_CODE in policy.auto_retry_for:
        return _("Retried on any error that another attempt may fix.")
    return _("Retried on these errors: %s.") % ", ".join(policy.auto_retry_for)


def _describe_delays(policy: RetryPolicy, retries: Sequence[int]) -> str:
    waits = [policy.planned(number) for number in retries]
    if policy.backoff_strategy is ShortForm.FUNCTION:
        text = _("The task's own backoff function returns the delay, or that there is no retry.")
        return f"{text} {_('After a worker crash:')} {_listed(waits)}."
    if len(set(waits)) > 1:
        is_more = len(waits) > _NAMED
        words = _("Delays before the retries: %s and so on.") if is_more else _("Delays before the retries: %s.")
        text = words % _listed(waits)
    elif waits[0]:
        text = _("Delay before each retry: %s.") % _seconds(waits[0])
    else:
        text = _("No delay before a retry.")
    return f"{text} {_('Each varies at random by up to a quarter.')}" if policy.jitter else text


def _listed(waits: Sequence[float]) -> str:
    shown = waits[:1] if len(set(waits)) == 1 else waits[:_NAMED]
    return ", ".join(map(_seconds, shown))


def _seconds(wait: float) -> str:
    return _("%s s") % f"{wait:g}" if wait < 120 else format_duration(wait)
