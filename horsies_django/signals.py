"""The signals of tasks: the framework's three and four more. And one of runners.

:mod:`horsies_django.core.signals` documents when each is sent, and its arguments.
"""

from .core.signals import (
    runner_stopping,
    task_cancelled,
    task_crashed,
    task_enqueued,
    task_expired,
    task_finished,
    task_retrying,
    task_started,
)

__all__ = [
    "runner_stopping",
    "task_cancelled",
    "task_crashed",
    "task_enqueued",
    "task_expired",
    "task_finished",
    "task_retrying",
    "task_started",
]
