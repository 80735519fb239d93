"""The signals of tasks: the framework's three and four more.

:mod:`horsies_django.core.signals` documents when each is sent, and its arguments.
"""

from .core.signals import (
    task_cancelled,
    task_crashed,
    task_enqueued,
    task_expired,
    task_finished,
    task_retrying,
    task_started,
)

__all__ = [
    "task_cancelled",
    "task_crashed",
    "task_enqueued",
    "task_expired",
    "task_finished",
    "task_retrying",
    "task_started",
]
