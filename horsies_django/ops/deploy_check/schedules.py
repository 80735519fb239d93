"""Check the enabled schedules that a scheduler of this code would send and would not rewrite first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.db.models import Q, TextField
from django.db.models.functions import Cast

from ...core.backends import ConfiguredBackend
from ...enqueue.task import HorsiesTask
from ...models import Schedule
from ...schedules.syncing import project_of
from .calls import (
    definition_parameters,
    definition_problem,
    find_task,
    gathers,
    name_problem,
    read_json,
    signature_problem,
    task_parameters,
    value_problems,
)
from .findings import Findings

#: Maximum schedules of one backend that are read.
MAX_SCHEDULES: Final = 10_000


class ScheduleCheck:
    """Checks the schedules of one backend.

    A scheduler writes those that the code declares to their rows before it sends any, and disables those that are gone
    from the code. So this checks only those that were made by hand, or enabled again by an operator. ``manage.py
    check`` validates the declared ones.
    """

    def __init__(self, alias: str, backend: ConfiguredBackend, findings: Findings) -> None:
        self._alias = alias
        self._backend = backend
        self._findings = findings

    def run(self) -> None:
        """Read the schedules, in the order of their next runs."""
        options = self._backend.config
        rows = Schedule.objects.using(options.database).served_by(self._alias, project_of(options))
        by_hand = rows.filter(Q(source="") | Q(declared_enabled__isnull=True)).order_by("next_run_at")
        texts = [Cast(name, TextField()) for name in ("args", "kwargs", "options")]
        columns = by_hand.values_list("pk", "name", "task_name", "workflow_name", *texts)
        for number, (key, name, *call) in enumerate(columns[: MAX_SCHEDULES + 1].iterator()):
            if number == MAX_SCHEDULES:
                sentence = f"There are more schedules of {self._alias!r} than {number:,}; the others were not read."
                self._findings.record_unread(sentence, "schedule")
                break
            self._findings.read["schedules"] += 1
            for problem in self._problems(*call):
                self._findings.add("schedule", name, problem, key)

    def _problems(
        self, task_name: str | None, workflow_name: str | None, args_text: str, kwargs_text: str, options_text: str
    ) -> Iterator[str]:
        try:
            args, kwargs = read_json(args_text, list), read_json(kwargs_text, dict)
            options = read_json(options_text, dict)
        except ValueError as error:
            yield str(error)
            return
        is_typed = self._backend.config.serializer == "rich"
        yield from value_problems([*args, *kwargs.values()], self._alias, is_typed=is_typed)
        if task_name is not None:
            yield from self._task_problems(task_name, args, kwargs, options)
        else:
            yield from self._workflow_problems(str(workflow_name), args, kwargs)
        queue = options.get("queue_name")
        if isinstance(queue, str) and self._backend.queues and queue not in self._backend.queues:
            yield f"queue {queue!r} is not in QUEUES of {self._alias!r}"

    def _task_problems(
        self, name: str, args: list[Any], kwargs: dict[str, Any], options: dict[str, Any]
    ) -> Iterator[str]:
        task = find_task(name)
        if task is None:
            yield f"{name}: {name_problem(name)}"
            return
        if not isinstance(task, HorsiesTask):
            yield f"{name}: it is a task of another backend"
        elif gathers(task):
            if args:
                yield f"{name}: it gathers its calls, which have no positional arguments"
        elif problem := signature_problem(task_parameters(task), args, kwargs):
            yield f"{name}: {problem}"
        if "queue_name" not in options and self._backend.queues and task.queue_name not in self._backend.queues:
            yield f"{name}: its queue {task.queue_name!r} is not in QUEUES of {self._alias!r}"

    def _workflow_problems(self, key: str, args: list[Any], kwargs: dict[str, Any]) -> Iterator[str]:
        if problem := definition_problem(key):
            yield problem
        elif args:
            yield f"{key}: a workflow has no positional arguments"
        elif problem := signature_problem(definition_parameters(key), (), kwargs):
            yield f"{key}: {problem}"
