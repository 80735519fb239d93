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

from ..core.backends import all_backends
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


def listen_to_deletes() -> None:
    """Cancel the tasks of a backend when a row of a model with ``on_delete: cancel`` is deleted by the ORM."""
    for backend in all_backends():
        for label, rule in backend.parsed.options.about.items():
            model = model_of(label)  # a system check reports a wrong label
            if rule.on_delete == "cancel" and model is not None and root_model(model) is model:
                DeleteListener(backend.alias, backend.parsed.options.database, label).connect(model)


@dataclass(frozen=True, slots=True, eq=False)
class DeleteListener:
    """Cancels the tasks of a backend about the rows of a model that deletes remove, in their transactions.

    Django sends ``pre_delete`` for all rows of a delete before it removes any, and ``post_delete`` for each row of a
    model once all of the model are removed. So the first of these finds all keys, in the block of this delete.
    """

    backend: str
    database: str
    label: str
    _keys: WeakKeyDictionary[Atomic, dict[str, None]] = field(default_factory=WeakKeyDictionary)

    def connect(self, model: type[Model]) -> None:
        """Listen to the deletes of a model and of its proxies, which have signals of their own."""
        for sender in apps.get_models():
            if sender._meta.concrete_model is model:
                pre_delete.connect(self._before, sender=sender, weak=False)
                post_delete.connect(self._after, sender=sender, weak=False)

    def _before(self, instance: Model, using: str, **_: Any) -> None:
        if (block := self._block(using)) is not None:
            self._keys.setdefault(block, {})[key_of(instance)] = None

    def _after(self, instance: Model, using: str, **_: Any) -> None:
        if (block := self._block(using)) is not None and (keys := list(self._keys.pop(block, ()))):
            for start in range(0, len(keys), BATCH):
                self._cancel(keys[start : start + BATCH])

    def _cancel(self, keys: Collection[str]) -> None:
        tasks = self._rows.filter(about_model=self.label, about_id__in=keys, backend=self.backend)
        live = set(tasks.filter(status__in=sorted(TASK_LIVE_STATES)).values_list("pk", flat=True))
        if held := live - self._cancel_unlocked(live, [TaskStatus.PENDING]):
            on_commit_robust(self.database, self._cancel_held, held)

    def _cancel_held(self, tasks: set[UUID]) -> None:
        """Cancel those that workers hold. A body that deletes its own row goes on."""
        current = current_task()
        self._cancel_unlocked(tasks - {current.id if current else None}, sorted(TASK_LIVE_STATES))

    def _cancel_unlocked(self, tasks: Collection[UUID], states: Collection[str]) -> set[UUID]:
        """Cancel the tasks in these states, but those that another transaction has locked; return which."""
        keys, cancelled = sorted(tasks), set[UUID]()
        for start in range(0, len(keys), BATCH):
            rows = self._rows.filter(pk__in=keys[start : start + BATCH], status__in=states)
            with transaction.atomic(using=self.database):
                if unlocked := set(rows.lock().values_list("pk", flat=True)):
                    self._rows.filter(pk__in=unlocked).cancel_without_row()
                    cancelled |= unlocked
        return cancelled

    def _block(self, using: str) -> Atomic | None:
        """Return the transaction block of a delete; None for another database, and for a signal of other code."""
        connection = connections[using]
        return connection.atomic_blocks[-1] if using == self.database and connection.in_atomic_block else None

    @property
    def _rows(self) -> TaskQuerySet:
        return Task.objects.using(self.database)
