"""Attempts: the outcome of each execution of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models import F, TextField, Value
from django.db.models.functions import Coalesce, Greatest
from django.utils.translation import gettext_lazy as _

from ..core.status import AttemptOutcome
from ..db.constraints import values_in_range
from ..db.expressions import ValueByPk, texts
from ..db.fields import DateTimeField
from ..db.now import Now
from ..db.statements import Statement
from .claim.query import DUE_AT


@dataclass(frozen=True, slots=True)
class AttemptError:
    """Why an attempt failed. Every database can store its texts.

    ``location`` is the module and the function in which the exception was raised; empty if there was none.
    """

    code: str
    message: str
    traceback: str = ""
    exception_class: str = ""
    location: str = ""

    @property
    def fingerprint(self) -> str:
        """The error group: equal for errors with the same class, code and location."""
        return sha256("|".join((self.exception_class, self.code, self.location)).encode()).hexdigest()[:12]


class TaskAttemptQuerySet(models.QuerySet["TaskAttempt"]):
    """Attempts are written once, straight from the rows of their tasks, and never changed."""

    def record(
        self,
        tasks: models.QuerySet[Any],
        outcome: AttemptOutcome,
        *,
        will_retry: bool = False,
        errors: Mapping[UUID, AttemptError] | None = None,
        hostname: str | models.Expression = "",
        pid: int | models.Expression | None = None,
        started_at: models.Expression | None = None,
    ) -> None:
        """Write the current attempt of each of ``tasks``. An existing one stays, so a replay writes nothing.

        ``started_at`` is by default that of the task.
        """
        columns = attempt_columns(outcome, will_retry=will_retry, errors=errors, hostname=hostname, pid=pid)
        if started_at is not None:
            columns["started_at"] = started_at
        Statement.insert(self.model, tasks, columns).run(tasks.db)


def attempt_columns(
    outcome: AttemptOutcome,
    *,
    will_retry: bool = False,
    errors: Mapping[UUID, AttemptError] | None = None,
    hostname: str | models.Expression = "",
    pid: int | models.Expression | None = None,
) -> dict[str, Any]:
    """Return the columns of an attempt as expressions over the row of its task."""
    columns: dict[str, Any] = {
        "task_id": F("pk"),
        "attempt": Greatest("attempt", 1),
        "outcome": Value(outcome.value),
        "will_retry": Value(will_retry),
        "due_at": DUE_AT,
        "started_at": Coalesce("started_at", Now()),
        "finished_at": Now(),
        "worker_id": Coalesce("claimed_by_worker_id", Value("")),
        "hostname": hostname if isinstance(hostname, models.Expression) else Value(hostname),
        "pid": pid if isinstance(pid, models.Expression) else Value(pid, models.IntegerField()),
    }
    for column, attribute in _ERROR_COLUMNS.items():
        entries = {key: getattr(error, attribute) for key, error in (errors or {}).items()}
        if errors:
            columns[column] = ValueByPk(texts(entries), TextField())
        elif column not in _DEFAULT_IN_DATABASE:
            columns[column] = Value("")
    return columns


_ERROR_COLUMNS = {
    "error_code": "code",
    "error_message": "message",
    "traceback": "traceback",
    "exception_class": "exception_class",
    "location": "location",
    "fingerprint": "fingerprint",
}

# Left out of the statement for attempts without an error, which is that of every success.
_DEFAULT_IN_DATABASE = {"location", "fingerprint"}


class TaskAttempt(models.Model):
    """One execution of a task, written when it ended."""

    id = models.BigAutoField(primary_key=True)
    # No constraint: rows are made from those of their tasks and deleted before them; the check would double the cost.
    task = models.ForeignKey(
        "horsies_django.Task",
        models.CASCADE,
        db_constraint=False,
        db_index=False,
        related_name="attempts",
        verbose_name=_("task"),
    )
    attempt = models.PositiveIntegerField(_("attempt"))
    outcome = models.CharField(_("outcome"), max_length=14, choices=AttemptOutcome.choices)
    will_retry = models.BooleanField(_("will retry"), default=False)
    due_at = DateTimeField(_("due at"), help_text=_("When it could have started."))
    started_at = DateTimeField(_("started at"))
    finished_at = DateTimeField(_("finished at"))
    error_code = models.CharField(_("error code"), max_length=100, blank=True)
    error_message = models.TextField(_("error message"), blank=True)
    exception_class = models.CharField(_("exception class"), max_length=255, blank=True)
    traceback = models.TextField(_("traceback"), blank=True)
    # The defaults are in the database too, for processes of the previous release, which insert without these columns.
    location = models.CharField(
        _("location"), max_length=255, blank=True, default="", db_default="", help_text=_("Where it was raised.")
    )
    fingerprint = models.CharField(_("error group"), max_length=12, blank=True, default="", db_default="")
    worker_id = models.CharField(_("worker"), max_length=64, blank=True)
    hostname = models.CharField(_("hostname"), max_length=255, blank=True)
    pid = models.PositiveIntegerField(_("process id"), null=True)

    objects = TaskAttemptQuerySet.as_manager()

    class Meta:
        db_table = "horsies_task_attempts"
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        constraints = [
            models.UniqueConstraint(fields=["task", "attempt"], name="horsies_attempt_is_written_once"),
            models.CheckConstraint(
                condition=models.Q(outcome__in=AttemptOutcome.values), name="horsies_attempt_outcome_is_known"
            ),
            values_in_range("attempt", "due_at started_at finished_at attempt pid task"),
        ]

    def __str__(self) -> str:
        return f"{self.task_id} #{self.attempt}"
