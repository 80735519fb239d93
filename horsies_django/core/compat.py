"""Django's task framework: ``django.tasks`` from Django 6.0 on, the ``django-tasks`` backport on 5.2.

Everything else in the package imports the framework's names from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import django

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import default_task_backend as default_task_backend
    from django.tasks import signals as framework_signals
    from django.tasks import task_backends as task_backends
    from django.tasks.backends.base import BaseTaskBackend as BaseTaskBackend
    from django.tasks.base import DEFAULT_TASK_BACKEND_ALIAS as DEFAULT_TASK_BACKEND_ALIAS
    from django.tasks.base import DEFAULT_TASK_PRIORITY as DEFAULT_TASK_PRIORITY
    from django.tasks.base import DEFAULT_TASK_QUEUE_NAME as DEFAULT_TASK_QUEUE_NAME
    from django.tasks.base import TASK_MAX_PRIORITY as TASK_MAX_PRIORITY
    from django.tasks.base import TASK_MIN_PRIORITY as TASK_MIN_PRIORITY
    from django.tasks.base import Task as FrameworkTask
    from django.tasks.base import TaskContext as TaskContext
    from django.tasks.base import TaskError as FrameworkTaskError
    from django.tasks.base import TaskResult as FrameworkTaskResult
    from django.tasks.base import TaskResultStatus as TaskResultStatus
    from django.tasks.exceptions import InvalidTask as InvalidTask
    from django.tasks.exceptions import TaskResultDoesNotExist as TaskResultDoesNotExist
    from django.tasks.exceptions import TaskResultMismatch as TaskResultMismatch
    from django.utils.json import normalize_json as normalize_json
else:
    try:
        import django_tasks  # noqa: F401  # tests whether it is installed
    except ImportError as error:
        from django.core.exceptions import ImproperlyConfigured

        raise ImproperlyConfigured(
            f"Django {django.get_version()} has no task framework of its own: "
            "install its backport with `pip install 'horsies-django[backport]'`."
        ) from error
    # So "django_tasks" need not be in INSTALLED_APPS for its checks and its settings receiver.
    from django_tasks import checks as _checks  # noqa: F401  # registers them
    from django_tasks import default_task_backend, task_backends
    from django_tasks import exceptions as _exceptions
    from django_tasks import signals as framework_signals
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import (
        DEFAULT_TASK_BACKEND_ALIAS,
        DEFAULT_TASK_PRIORITY,
        DEFAULT_TASK_QUEUE_NAME,
        TASK_MAX_PRIORITY,
        TASK_MIN_PRIORITY,
        TaskContext,
        TaskResultStatus,
    )
    from django_tasks.base import Task as FrameworkTask
    from django_tasks.base import TaskError as FrameworkTaskError
    from django_tasks.base import TaskResult as FrameworkTaskResult
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.utils import normalize_json

    # Renamed after 0.12.0.
    InvalidTask = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError

task_enqueued = framework_signals.task_enqueued
task_started = framework_signals.task_started
task_finished = framework_signals.task_finished

__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS",
    "DEFAULT_TASK_PRIORITY",
    "DEFAULT_TASK_QUEUE_NAME",
    "TASK_MAX_PRIORITY",
    "TASK_MIN_PRIORITY",
    "BaseTaskBackend",
    "FrameworkTask",
    "FrameworkTaskError",
    "FrameworkTaskResult",
    "InvalidTask",
    "TaskContext",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "default_task_backend",
    "framework_signals",
    "normalize_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
