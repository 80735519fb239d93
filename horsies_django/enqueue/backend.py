"""``HorsiesBackend``, the backend of Django's task framework."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, TypeAlias, cast
from uuid import UUID

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.utils.functional import cached_property

from ..core.backends import loading
from ..core.compat import (
    FrameworkTask,
    FrameworkTaskResult,
    InvalidTask,
    TaskResultDoesNotExist,
    framework_signals,
    task_enqueued,
)
from ..core.middleware import TaskSend, around_send
from ..core.option_parsers import LONGEST_DURATION
from .backend_checks import INSTALL, NOT_INSTALLED, check_backend
from .call_builder import CallBuilder
from .handle import TaskHandle
from .insert import EnqueueResult, insert_call
from .insert_many import insert_many
from .sending_backend import SendingBackend
from .task import HorsiesTask, P, T
from .task_validation import problems_of, problems_of_deadline, problems_of_unique

#: An inserted call, and the framework's result of it if one was needed.
Inserted: TypeAlias = "tuple[EnqueueResult, FrameworkTaskResult[..., Any] | None]"


class HorsiesBackend(SendingBackend):
    """A task backend that stores its tasks in the project's own database.

    Django builds one instance per thread, the first while it imports the first ``@task``. So an instance holds only
    settings, and no connection.
    """

    task_class = HorsiesTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True
    supports_metadata = True  # the name of a proposal for Django's own backends

    @cached_property
    def _is_installed(self) -> bool:
        return apps.is_installed("horsies_django")

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Return one message for each error in the settings of this backend."""
        return check_backend(self.alias, self.parsed)

    def validate_task(self, task: FrameworkTask[..., Any]) -> None:
        """Raise InvalidTask if the backend can't take ``task``. The framework's own rules are checked first.

        While Django imports the modules of apps, a task for an unknown queue is only recorded: the system check
        horsies.E010 reports it.
        """
        if not apps.ready and loading.is_active and self._lacks_queue_of(task):
            loading.note_queue(task, self.queues)
            return
        self._validate(task)

    def _lacks_queue_of(self, task: FrameworkTask[..., Any]) -> bool:
        return bool(self.queues) and isinstance(task.queue_name, str) and task.queue_name not in self.queues

    def _validate(self, task: FrameworkTask[..., Any]) -> None:
        if apps.ready and not self._is_installed:
            raise ImproperlyConfigured(f"{NOT_INSTALLED % self.alias} {INSTALL}")
        is_nan = isinstance(task.priority, float) and math.isnan(task.priority)
        if is_nan or not isinstance(task.priority, int | float):  # the framework compares it without checking its type
            raise TypeError(f"priority is {task.priority!r}; allowed: a whole number from -100 to 100.")
        if not isinstance(task.run_after, datetime | timedelta | None):
            raise InvalidTask(f"run_after is {task.run_after!r}; allowed: an aware datetime or a timedelta from 0 on.")
        if isinstance(task.run_after, timedelta):
            # The framework documents a timedelta but can't validate one; replace() validates everything else.
            if not timedelta() <= task.run_after <= timedelta(seconds=LONGEST_DURATION):
                raise InvalidTask(
                    f"run_after is {task.run_after!r}; allowed: an aware datetime or a timedelta from 0 on."
                )
            replace(task, run_after=None)
            if isinstance(task, HorsiesTask):
                problems = chain(problems_of_unique(task), problems_of_deadline(task))
                if (problem := next(problems, None)) is not None:
                    raise InvalidTask(problem)
            return
        super().validate_task(task)
        if isinstance(task, HorsiesTask) and (problem := next(problems_of(task), None)):
            raise InvalidTask(problem)

    # The framework's own methods.

    def enqueue(self, task: FrameworkTask[P, T], args: Any, kwargs: Any) -> FrameworkTaskResult[P, T]:
        """Insert a call in the current transaction and return the framework's result."""
        _, result = self._insert(task, args, kwargs, needs_result=True)
        return cast("FrameworkTaskResult[P, T]", result)

    async def aenqueue(self, task: FrameworkTask[P, T], args: Any, kwargs: Any) -> FrameworkTaskResult[P, T]:
        """See :meth:`enqueue`. Runs in the thread that has the caller's transaction."""
        return cast("FrameworkTaskResult[P, T]", await self._enqueue_in_thread(task, args, kwargs))

    @cached_property
    def _enqueue_in_thread(self) -> Callable[..., Awaitable[FrameworkTaskResult[..., Any]]]:
        return sync_to_async(self.enqueue, thread_sensitive=True)

    def get_result(self, result_id: Any) -> FrameworkTaskResult[..., Any]:
        """Return the framework's result of a task. Raises TaskResultDoesNotExist for an unknown or a malformed id."""
        from ..models import Task
        from .django_result import result_of

        try:
            key = UUID(str(result_id))
            row = Task.objects.using(self.config.database).get(pk=key)
        except (ValueError, Task.DoesNotExist) as error:
            raise TaskResultDoesNotExist(str(result_id)) from error
        return result_of(row)

    async def aget_result(self, result_id: Any) -> FrameworkTaskResult[..., Any]:
        """See :meth:`get_result`."""
        return await sync_to_async(self.get_result, thread_sensitive=True)(result_id)

    # The methods behind ``task.send()``, ``send_many()`` and ``cancel()``.

    def send(self, task: Any, args: Any, kwargs: Any, *, own: Mapping[str, Any] | None = None) -> TaskHandle[Any]:
        """Insert a call in the current transaction and return its handle. ``own`` sets columns for this call only."""
        sent, _ = self._insert(task, args, kwargs, own=own)
        return TaskHandle(sent.id, backend=self.alias, replayed=not (sent.is_new or sent.is_grouped))

    def send_many(self, task: Any, calls: Iterable[Mapping[str, Any]]) -> Sequence[TaskHandle[Any]]:
        """Insert many calls in the current transaction. Sends no signals."""
        builder = self._builder_of(task)
        send = TaskSend(task_name=task.task_name, queue_name=task.queue_name, is_many=True)
        with around_send(self.config, send):
            handles = insert_many(self.config, builder, calls)
            send.count = len(handles)
        return handles

    def cancel(self, unique_key: str, *, include_running: bool = False) -> bool:
        """Cancel the live task that holds ``unique_key``; return whether there was one to cancel."""
        from ..models import Task

        rows = Task.objects.using(self.config.database).holding_unique_key(unique_key)
        return rows.cancel(include_running=include_running) > 0

    def _builder_of(self, task: HorsiesTask[..., Any]) -> CallBuilder:
        """Return the builder of a valid task's calls. Settings may have changed since the task was made."""
        builder = CallBuilder.of(task, self.config)
        if not builder.is_valid or task.good_until is not None:  # a deadline depends on the time
            self._validate(task)
            builder.is_valid = apps.ready
        return builder

    def _insert(
        self,
        task: FrameworkTask[..., Any],
        args: Any,
        kwargs: Any,
        *,
        needs_result: bool = False,
        own: Mapping[str, Any] | None = None,
    ) -> Inserted:
        """Insert a call, and send ``task_enqueued`` if its row is new. Return the framework's result only if needed."""
        calls = self._builder_of(task if isinstance(task, HorsiesTask) else _own_task(task))
        # The framework's own receiver only logs at DEBUG.
        is_received = len(task_enqueued.receivers) > 1 or framework_signals.logger.isEnabledFor(logging.DEBUG)
        needs_result = needs_result or is_received
        sent = insert_call(self.config, calls, args, kwargs, needs_result=needs_result, own=own)
        if not needs_result:
            return sent, None
        from .django_result import result_of, result_of_new

        if sent.new_row is not None:
            result = result_of_new(sent.new_row, sent.times, task)
        else:
            assert sent.row is not None
            result = result_of(sent.row, task=task)
        if sent.is_new and is_received:
            # The row is inserted: an error of a receiver must not make the caller enqueue the call again.
            task_enqueued.send_robust(sender=type(self), task_result=result)
        return sent, result


def _own_task(task: FrameworkTask[..., Any]) -> HorsiesTask[..., Any]:
    """Return a task of another class as one of ours: another backend made it, before the settings changed."""
    options = ("func", "priority", "backend", "queue_name", "run_after", "takes_context")
    return HorsiesTask(**{name: getattr(task, name) for name in options})
