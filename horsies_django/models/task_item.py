"""Task items: the calls of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..db.constraints import values_in_range
from ..db.fields import DateTimeField, JSONField
from ..db.now import Now

if TYPE_CHECKING:
    from .task import Task  # noqa: F401  # the key below names it


class TaskItem(models.Model):
    """One call in a group, written with the call, never changed, and deleted with its task."""

    task_id: UUID  # set by the foreign key below; only some versions of the type stubs know it

    id = models.BigAutoField(primary_key=True)
    task = models.ForeignKey(
        "horsies_django.Task",
        models.CASCADE,
        db_constraint=False,
        db_index=False,
        related_name="items",
        verbose_name=_("task"),
    )
    position = models.PositiveIntegerField(_("position"))
    kwargs = JSONField(_("keyword arguments"), default=dict)
    sent_at = DateTimeField(_("sent at"), db_default=Now())

    objects: models.Manager[TaskItem] = models.Manager()

    class Meta:
        db_table = "horsies_task_items"
        verbose_name = _("grouped call")
        verbose_name_plural = _("grouped calls")
        constraints = [
            values_in_range("item", "sent_at position task"),
            models.UniqueConstraint(fields=["task", "position"], name="horsies_item_has_its_place_alone"),
        ]

    def __str__(self) -> str:
        return f"{self.task_id} [{self.position}]"


def append_items(database: str, task_id: UUID, first: int, calls: Sequence[dict[str, Any]]) -> None:
    """Append calls to a task that has ``first`` calls already."""
    items = [TaskItem(task_id=task_id, position=first + place, kwargs=call) for place, call in enumerate(calls)]
    TaskItem.objects.using(database).bulk_create(items, batch_size=1_000)
