"""A description of the retry policy in force for a task."""

from __future__ import annotations

from typing import Final

from django.utils.translation import gettext as _

from ...core.durations import format_duration
from ...core.registry import registry
from ...core.retry import ANY_CODE, NO_RETRIES, RETRIES_ON_DEMAND, RetryPolicy
from ...enqueue.task import HorsiesTask
from ...models import Task
from ..diagnosis.reason import backend_options

#: How many waits are listed.
_NAMED: Final = 5


def describe_retry_policy(task: Task) -> str:
    """Describe how often a task is tried, after which errors and with which waits.

    The policy is the one in its row, with which it was sent. A ``backoff`` function comes from the task registered in
    this process.
    """
    if task.retry_policy is None:
        text = _("No retries: one attempt. A task that raises Retry is retried at most %d times.")
        return text % (task.max_retries or RETRIES_ON_DEMAND)
    if task.retry_policy == NO_RETRIES:
        return _("No retries: one attempt.")
    try:
        policy = RetryPolicy.from_json(task.retry_policy)
    except (TypeError, ValueError, KeyError):
        return _("No retries: the stored policy is invalid.")
    if not task.max_retries:
        return _("No retries: one attempt.")
    attempts = _("Up to %d attempts.") % (task.max_retries + 1)
    return f"{attempts} {_describe_errors(policy)} {_describe_waits(task, policy)}"


def _describe_errors(policy: RetryPolicy) -> str:
    if ANY_CODE in policy.auto_retry_for:
        return _("Retried on any error that another attempt may fix.")
    return _("Retried on these errors: %s.") % ", ".join(policy.auto_retry_for)


def _describe_waits(task: Task, policy: RetryPolicy) -> str:
    registered = registry.tasks.get(task.task_name)
    backoff = None
    if isinstance(registered, HorsiesTask):
        backoff = registered.own_backoff(policy, backend_options(task.backend).defaults)
    if callable(backoff):
        return _("The task's own backoff function returns the delay, or that there is no retry.")
    numbers = range(1, task.max_retries + 1)
    waits = [policy.planned(number) if backoff is None else float(backoff) for number in numbers]
    if len(set(waits)) > 1:
        is_more = len(waits) > _NAMED
        words = _("Delays before the retries: %s and so on.") if is_more else _("Delays before the retries: %s.")
        text = words % ", ".join(map(_seconds, waits[:_NAMED]))
    elif waits[0]:
        text = _("Delay before each retry: %s.") % _seconds(waits[0])
    else:
        text = _("No delay before a retry.")
    is_jittered = backoff is None and policy.jitter
    jitter = _("Each varies at random by up to a quarter.")
    return f"{text} {jitter}" if is_jittered else text


def _seconds(wait: float) -> str:
    return _("%s s") % f"{wait:g}" if wait < 120 else format_duration(wait)
