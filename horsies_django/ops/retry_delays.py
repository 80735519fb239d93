"""What sets the delays between the attempts of a task: the policy in its row, or the ``backoff`` of its code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.registry import registry
from ..core.retry import NO_RETRIES, RetryPolicy
from ..core.task_options import Backoff
from ..enqueue.task import HorsiesTask
from ..models import Task
from .diagnosis.reason import backend_options


@dataclass(frozen=True, slots=True)
class RetryDelays:
    """The delays in force for one task.

    Attributes:
        policy: The policy in the task's row, with which it was sent.
        backoff: What the task's code sets instead of the policy's delays: seconds, or a function. None if the policy
            sets them.
        is_registered: Whether this process knows the task. If not, its code may have a ``backoff`` that is unknown.
    """

    policy: RetryPolicy
    backoff: float | Backoff | None
    is_registered: bool

    @property
    def is_computed(self) -> bool:
        """Whether a function of the task's code sets the delays."""
        return callable(self.backoff)

    @property
    def may_be_approximate(self) -> bool:
        """Whether the task's code, which this process does not know, may set other delays than the policy."""
        return not self.is_registered and self.policy == RetryPolicy.from_backoff(None, self.policy.max_retries)

    def before(self, retry: int) -> float:
        """Return the seconds before a retry, counted from 1, without jitter. Those of the policy if they are computed.

        >>> RetryDelays(RetryPolicy.constant(60, max_retries=2, auto_retry_for=["*"]), 0.5, True).before(1)
        0.5
        """
        if self.backoff is None or callable(self.backoff):
            return self.policy.planned(retry)
        return float(self.backoff)


def stored_policy(task: Task) -> RetryPolicy | None:
    """Return the policy in a row; None if it has none. Raises ValueError for one that is damaged."""
    if task.retry_policy is None or task.retry_policy == NO_RETRIES:
        return None
    try:
        return RetryPolicy.from_json(task.retry_policy)
    except (TypeError, KeyError) as error:
        raise ValueError(f"The stored retry policy is invalid: {error}") from error


def delays_of(task: Task, policy: RetryPolicy) -> RetryDelays:
    """Return the delays in force for a task with this policy in its row."""
    registered = registry.tasks.get(task.task_name)
    backoff: float | Callable[..., Any] | None = None
    if isinstance(registered, HorsiesTask):
        backoff = registered.own_backoff(policy, backend_options(task.backend).defaults)
    return RetryDelays(policy, backoff, registered is not None)
