"""Tasks about rows: a delete of a row cancels them, and none begins whose row is gone.

The order of locks is the row before its tasks: a delete locks its rows, then their PENDING tasks. It waits for no lock
of a task: one that another transaction has locked, even after the commit, ends when it would begin.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID
from weakref import WeakKeyDictionary

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import connections, transaction
from django.db.models import Model, QuerySet
from django.db.models.signals import post_delete, pre_delete
from django.db.transaction import Atomic

from ..core.backends import ConfiguredBackend, all_backends
from ..core.current_task import current_task
from ..core.options import Options
from ..core.status import TASK_LIVE_STATES, TaskStatus
from ..db.on_commit import on_commit_robust
from ..db.row_key import key_of, key_value, model_of, root_model
from .claims import ClaimedTask
from .task import Task
from .transitions import TaskQuerySet

#: Rows whose tasks one statement looks for, and tasks that one statement cancels.
BATCH: Final = 1_000


def is_row_gone(claimed: ClaimedTask, options: Options) -> bool:
    """Whether the row that a task is about does not exist, so that the task must not begin."""
    label, key = claimed.about_model or "", claimed.about_id or ""
    rule, model = options.about.get(label), model_of(label)
    if rule is None or rule.on_delete != "cancel" or model is None:
        return False
    rows: QuerySet[Model] = QuerySet(model, using=options.database)  # no manager: one may hide rows
    try:
        return not rows.filter(pk=key_value(model, key)).exists()
    except (ValidationError, ValueError):  # the model has another kind of key since
        return True


#: The labels of the models whose deletes this process listens to.
_listening: Final[set[str]] = set()


def listen_to_deletes() -> None:
    """Listen to the deletes of all models with ``on_delete: cancel``. A system check reports wrong labels."""
    for backend in all_backends():
        for label in backend.parsed.options.about:
            listen_to_deletes_of(label)


def listen_to_deletes_of(label: str) -> None:
    """Listen to the deletes of a model, if a backend says so: tests may have changed the settings since the start."""
    if label not in _listening and any(_cancels(backend, label) for backend in all_backends()):
        model = model_of(label)
        if model is not None and root_model(model) is model:
            DeleteListener(label).connect(model)
            _listening.add(label)


def _cancels(backend: ConfiguredBackend, label: str) -> bool:
    rule = backend.parsed.options.about.get(label)
    return rule is not None and rule.on_delete == "cancel"


@dataclass(frozen=True, slots=True, eq=False)
class DeleteListener:
    """Cancels the tasks about the rows of a model that deletes remove, in their transactions.

    Django sends ``pre_delete`` for all rows of a delete before it removes any, and ``post_delete`` for each row of a
    model once all of the model are removed. So the first of these finds all keys, in the block of this delete.
    """

    label: str
    _keys: WeakKeyDictionary[Atomic, dict[str, None]] = field(default_factory=WeakKeyDictionary)

    def connect(self, model: type[Model]) -> None:
        """Listen to the deletes of a model and of its proxies, which have signals of their own."""
        for sender in apps.get_models():
            if sender._meta.concrete_model is model:
                pre_delete.connect(self._before, sender=sender, weak=False)
                post_delete.connect(self._after, sender=sender, weak=False)

    def _before(self, instance: Model, using: str, **_: Any) -> None:
        if (block := _block(using)) is not None:
            self._keys.setdefault(block, {})[key_of(instance)] = None

    def _after(self, instance: Model, using: str, **_: Any) -> None:
        if (block := _block(using)) is None or not (keys := list(self._keys.pop(block, ()))):
            return
        mine = (backend for backend in all_backends() if backend.parsed.options.database == using)
        backends = [backend.alias for backend in mine if _cancels(backend, self.label)]
        tasks = Task.objects.using(using).filter(about_model=self.label, backend__in=backends)
        for start in range(0, len(keys) if backends else 0, BATCH):
            _cancel(tasks.filter(about_id__in=keys[start : start + BATCH]))


def _block(using: str) -> Atomic | None:
    """Return the transaction block of a delete; None for a signal that other code sends outside of any."""
    connection = connections[using]
    return connection.atomic_blocks[-1] if connection.in_atomic_block else None


def _cancel(tasks: TaskQuerySet) -> None:
    """Cancel the pending ones of these tasks, and after the commit those that workers hold."""
    live = set(tasks.filter(status__in=sorted(TASK_LIVE_STATES)).values_list("pk", flat=True))
    if held := live - _cancel_unlocked(tasks.db, live, [TaskStatus.PENDING]):
        on_commit_robust(tasks.db, _cancel_held, tasks.db, held)


def _cancel_held(database: str, tasks: set[UUID]) -> None:
    """Cancel those that workers hold. A body that deletes its own row goes on."""
    current = current_task()
    _cancel_unlocked(database, tasks - {current.id if current else None}, sorted(TASK_LIVE_STATES))


def _cancel_unlocked(database: str, tasks: Collection[UUID], states: Collection[str]) -> set[UUID]:
    """Cancel the tasks in these states, but those that another transaction has locked; return which."""
    keys, cancelled = sorted(tasks), set[UUID]()
    every = Task.objects.using(database)
    for start in range(0, len(keys), BATCH):
        rows = every.filter(pk__in=keys[start : start + BATCH], status__in=states)
        with transaction.atomic(using=database):
            if unlocked := set(rows.lock().values_list("pk", flat=True)):
                every.filter(pk__in=unlocked).cancel_without_row()
                cancelled |= unlocked
    return cancelled
