"""The signals of a task's life: the framework's three, and four of ours.

:mod:`horsies_django.core.signals` says when each is sent, and with what.
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
