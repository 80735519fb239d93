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
        text = _("No retries: one attempt. A body that raises Retry is tried again, %d times at most.")
        return text % (task.max_retries or RETRIES_ON_DEMAND)
    if task.retry_policy == NO_RETRIES:
        return _("No retries: one attempt.")
    try:
        policy = RetryPolicy.from_json(task.retry_policy)
    except (TypeError, ValueError, KeyError):
        return _("No retries: the policy that is stored can't be read.")
    if not task.max_retries:
        return _("No retries: one attempt.")
    attempts = _("Up to %d attempts.") % (task.max_retries + 1)
    return f"{attempts} {_describe_errors(policy)} {_describe_waits(task, policy)}"


def _describe_errors(policy: RetryPolicy) -> str:
    if ANY_CODE in policy.auto_retry_for:
        return _("Any error is retried that another attempt can mend.")
    return _("These errors are retried: %s.") % ", ".join(policy.auto_retry_for)


def _describe_waits(task: Task, policy: RetryPolicy) -> str:
    registered = registry.tasks.get(task.task_name)
    backoff = None
    if isinstance(registered, HorsiesTask):
        backoff = registered.own_backoff(policy, backend_options(task.backend).defaults)
    if callable(backoff):
        return _("The task's own backoff function says how long to wait, or that there is no retry.")
    numbers = range(1, task.max_retries + 1)
    waits = [policy.planned(number) if backoff is None else float(backoff) for number in numbers]
    if len(set(waits)) > 1:
        is_more = len(waits) > _NAMED
        words = _("Waits before the retries: %s and so on.") if is_more else _("Waits before the retries: %s.")
        text = words % ", ".join(map(_seconds, waits[:_NAMED]))
    elif waits[0]:
        text = _("Wait before each retry: %s.") % _seconds(waits[0])
    else:
        text = _("There is no wait before a retry.")
    is_jittered = backoff is None and policy.jitter
    return f"{text} {_('Each is longer or shorter by up to a quarter.')}" if is_jittered else text


def _seconds(wait: float) -> str:
    return _("%s s") % f"{wait:g}" if wait < 120 else format_duration(wait)
