"""The signals of a task's life: the framework's three, and four of ours; and one of a runner.

The sender is the class of the task's backend. Every signal has ``task_result``, the framework's result, read from the
row when the signal is sent. That is after the commit, so the row may have changed again. Each signal is sent at most
once: a process that is killed between the commit and the signal sends none. Errors of receivers are logged and change
nothing.

- ``task_enqueued``, ``task_started``, ``task_finished``: see ``django.tasks.signals``.
- ``task_retrying``: an attempt failed and another will follow. ``error`` is its :class:`~horsies_django.TaskError`,
  ``next_retry_at`` the time of the next attempt; None if that has begun meanwhile.
- ``task_crashed``: an attempt was lost with its worker. ``error`` likewise; ``will_retry`` says whether
  ``task_retrying`` or ``task_finished`` follows.
- ``task_expired``: ``good_until`` passed before the body began.
- ``task_cancelled``: it was cancelled. Its body may run on for a moment, or to its end.

``runner_stopping`` has neither sender nor ``task_result``: a runner of a worker has stored its last result and exits
when the receivers return. It runs no function of ``atexit``. Its supervisor waits a few seconds, then kills it.
"""

from __future__ import annotations

from typing import Final

from django.dispatch import Signal

from .compat import task_enqueued, task_finished, task_started

task_retrying: Final = Signal()
task_crashed: Final = Signal()
task_expired: Final = Signal()
task_cancelled: Final = Signal()
runner_stopping: Final = Signal()

__all__ = [
    "has_receivers",
    "runner_stopping",
    "task_cancelled",
    "task_crashed",
    "task_enqueued",
    "task_expired",
    "task_finished",
    "task_retrying",
    "task_started",
]


def has_receivers(signal: Signal) -> bool:
    """Whether any receiver is connected."""
    return bool(signal.receivers)
