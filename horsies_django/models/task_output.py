"""Output: what bodies write and log, in its order."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from django.db import connections, models
from django.db.models import OuterRef, Subquery
from django.db.models.expressions import RawSQL
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from ..core.serialization import dumps
from ..core.status import OutputKind
from ..db.constraints import values_in_range
from ..db.expressions import NowPlus
from ..db.fields import DateTimeField, JSONField
from ..db.inserts import DO_NOTHING, insert_values
from ..db.now import Now
from ..db.sent_rows import json_rows
from ..db.statements import Statement
from .claims import ClaimedTask

if TYPE_CHECKING:
    from ..core.output import Chunk, OutputBuffer

#: Maximum rows of one statement, which other work of its worker waits for.
ROWS_PER_INSERT: Final = 10_000


class TaskOutputQuerySet(models.QuerySet["TaskOutput"]):
    """Rows are written under the claim of their task, and never changed."""

    def save_unsaved(self, outputs: Iterable[tuple[ClaimedTask, OutputBuffer]]) -> dict[OutputBuffer, int]:
        """Store what is unsaved, and return the number of the last chunk of each output.

        Takes one statement, unless it would be very long; another for tasks that have run before. A chunk that is
        stored already stays. Nothing is stored for a task that has been claimed again.
        """
        unsaved = [(claimed, output, chunks) for claimed, output in outputs if (chunks := output.unsaved())]
        first = [claimed for claimed, output, _ in unsaved if output.last_before is None]
        lasts = self._last_sequences([claimed.task_id for claimed in first if claimed.claim > 1])
        rows, now = list[dict[str, Any]](), time.monotonic()
        for claimed, output, chunks in unsaved:
            if output.last_before is None:
                output.last_before = lasts.get(claimed.task_id, 0)
            rows += (self._row(claimed, output.last_before, chunk, now) for chunk in chunks)
        for start in range(0, len(rows), ROWS_PER_INSERT):
            self._send(rows[start : start + ROWS_PER_INSERT])
        return {output: chunks[-1].number for _, output, chunks in unsaved}

    def _last_sequences(self, task_ids: Collection[UUID]) -> dict[UUID, int]:
        if not task_ids:
            return {}
        tasks = cast("Any", TaskOutput._meta.get_field("task").related_model).objects.using(self.db)
        return dict(tasks.filter(pk__in=task_ids).values_list("pk", self.last_sequence()))

    def last_sequence(self) -> Coalesce:
        """Return an expression over tasks for the last sequence of each; 0 if there is none."""
        of_task = self.filter(task=OuterRef("pk")).order_by("-sequence")
        return Coalesce(Subquery(of_task.values("sequence")[:1]), 0)

    def _row(self, claimed: ClaimedTask, last_before: int, chunk: Chunk, now: float) -> dict[str, Any]:
        is_text = connections[self.db].vendor == "sqlite"  # it would store a part of a JSON text that is a text itself
        return {
            "task_id": claimed.task_id,
            "claim": claimed.claim,
            "attempt": claimed.attempt,
            "sequence": last_before + chunk.number,
            "kind": chunk.kind.value,
            "data": dumps(chunk.data) if is_text else chunk.data,
            "age": now - chunk.written_at,
        }

    def _send(self, rows: Sequence[dict[str, Any]]) -> None:
        sent, source = json_rows(self.db, _FIELDS, rows)
        held = Statement.compose(
            "{source} JOIN horsies_tasks AS held ON held.id = {task_id} AND held.claim = {claim}", source=source, **sent
        )
        age = NowPlus(-RawSQL(sent.pop("age").sql, (), models.FloatField()))  # noqa: S611  # a column of the source
        del sent["claim"]
        insert_values(TaskOutput, {**sent, "at": age}, self.db, source=held, on_conflict=DO_NOTHING).run(self.db)


#: The columns of a chunk that is sent.
_FIELDS: Final[dict[str, models.Field[Any, Any]]] = {
    "task_id": models.UUIDField(),
    "claim": models.BigIntegerField(),
    "attempt": models.IntegerField(),
    "sequence": models.IntegerField(),
    "kind": models.TextField(),
    "data": models.JSONField(),
    "age": models.FloatField(),
}


class TaskOutput(models.Model):
    """A chunk of the output of a task."""

    id = models.BigAutoField(primary_key=True)
    # No constraint, as for attempts.
    task = models.ForeignKey(
        "horsies_django.Task",
        models.CASCADE,
        db_constraint=False,
        db_index=False,
        related_name="output",
        verbose_name=_("task"),
    )
    attempt = models.PositiveIntegerField(_("attempt"))
    sequence = models.PositiveIntegerField(_("sequence"), help_text=_("From 1 within a task, over all attempts."))
    kind = models.CharField(_("kind"), max_length=6, choices=OutputKind.choices)
    data = JSONField(_("data"), null=True)
    at = DateTimeField(_("written at"), db_default=Now())

    objects = TaskOutputQuerySet.as_manager()

    class Meta:
        db_table = "horsies_task_output"
        verbose_name = _("output")
        verbose_name_plural = _("output")
        constraints = [
            models.UniqueConstraint(fields=["task", "sequence"], name="horsies_output_is_written_once"),
            models.CheckConstraint(condition=models.Q(kind__in=OutputKind.values), name="horsies_output_kind_is_known"),
            values_in_range("output", "at attempt sequence task"),
        ]

    def __str__(self) -> str:
        return f"{self.task_id} {self.sequence}"
