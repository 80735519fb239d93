"""A description of the retry policy in force for a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django.utils.translation import gettext as _

from ...core.numbers import format_duration
from ...core.retry import ANY_CODE, NO_RETRIES, RETRIES_ON_DEMAND, RetryPolicy, ShortForm
from ...models import Task

#: How many waits are listed.
_NAMED: Final = 5


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
    if not task.max_retries:
        return _("No retries: one attempt.")
    attempts = _("Up to %d attempts.") % (task.max_retries + 1)
    delays = _describe_delays(policy, range(1, task.max_retries + 1))
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
