"""Versions of the project's code: what a worker reports, and how calls of another version are handed back."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields
from typing import Any, Final

from ..core.annotations import bare_signature
from ..core.options import Options
from ..core.registry import registry
from ..core.serialization import dumps
from ..core.version import __version__
from ..db.snooze_on_outage import snooze_on_outage
from ..models import Task, Worker
from ..models.claims import Completion
from ..workflows.conditions import conditions_of
from ..workflows.definition_registry import definition_registry
from .execution import Execution, ExecutionResult

logger = logging.getLogger("horsies_django.worker")

#: Seconds that a call waits after it was handed back, the first time and at most.
FIRST_DELAY: Final = 1.0
MAX_DELAY: Final = 60.0

#: Maximum number of times that a call is handed back, for about an hour and a half in all.
MAX_RETURNS: Final = 100

#: Maximum versions that a row lists, the latest ones.
MAX_VERSIONS: Final = 10


def code_version(options: Options) -> str:
    """Return the version of the project's code: ``OPTIONS["version"]``, by default a fingerprint."""
    return options.version or fingerprint()


@functools.cache
def fingerprint() -> str:
    """Return a hash of what rows can name, and of its parameters.

    These are the tasks, workflows, conditions and dataclasses that were registered while Django started: the same in
    each process with the same code and settings.
    """
    lines = "\n".join(sorted(_lines()))
    return hashlib.sha256(f"{__version__}\n{lines}".encode()).hexdigest()[:16]


def _lines() -> Iterator[str]:
    modules: set[str] = set()
    types = dict(registry.types)
    for name, task in list(registry.tasks.items()):
        if name not in registry.late:
            modules.add(task.func.__module__)
            yield f"task {name}{_signature_of(task.func)}"
    for path, definition in list(definition_registry.definitions.items()):
        if path not in registry.late:
            modules.add(definition.__module__)
            yield f"workflow {definition._meta.options.definition_key}{_signature_of(definition.build_with)}"
    for name, kind in types.items():
        if name not in registry.late:
            yield f"dataclass {name}({','.join(field.name for field in fields(kind))})"
    for module in modules:
        yield from (f"condition {path}" for path in conditions_of(module))


def _signature_of(function: Callable[..., Any]) -> str:
    """Return a function's parameters, without the values of defaults: those may print differently in each process."""
    parameters = bare_signature(function).parameters.values()
    return ",".join(
        f"{parameter.name}:{int(parameter.kind)}{'=' * (parameter.default is not parameter.empty)}"
        for parameter in parameters
    )


def release_unknown(execution: Execution, error: BaseException) -> ExecutionResult | None:
    """Return the result that hands a call back which this worker does not know; None if it has to fail here.

    A call is handed back while a live worker serves its queue whose version has not tried the call yet, and at most
    :data:`MAX_RETURNS` times. Raises Snooze while the database is unavailable.
    """
    with snooze_on_outage():
        rows = Task.objects.using(execution.database).filter(pk=execution.task_id)
        versions, times = _read(rows.values_list("unknown_to", flat=True).first())
        mine = code_version(execution.options)
        versions = [*(version for version in versions if version != mine), mine]
        if times >= MAX_RETURNS or not _is_served_by_another(execution, versions):
            return None
    note = dumps({"versions": versions[-MAX_VERSIONS:], "times": times + 1})
    delay = min(FIRST_DELAY * 2.0 ** min(times, 30), MAX_DELAY)
    return ExecutionResult(
        execution,
        Completion(execution.task_id, execution.claimed.claim, "null", delay=delay, unknown_to=note),
        error.__cause__ or error,
    )


def _is_served_by_another(execution: Execution, versions: Collection[str]) -> bool:
    alive = Worker.objects.using(execution.database).alive(execution.options.recovery.stale_after)
    others = alive.accepting().exclude(code_version__in=versions)
    return any(worker.serves(execution.claimed.queue_name) for worker in others)


def _read(stored: Any) -> tuple[list[str], int]:
    """Return the versions that have tried a call, and how often it was handed back; nothing if the row is damaged."""
    match stored:
        case {"versions": list() as versions, "times": int() as times}:
            return [version for version in versions if isinstance(version, str)], max(0, times)
    return [], 0
