"""Workers: the processes that claim tasks."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

from django.db import models, transaction
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from ..core.operations import log_operation, names_of
from ..db.constraints import values_in_range
from ..db.expressions import NowPlus
from ..db.fields import DateTimeField, JSONField, strings_in
from ..db.notifications import notify_worker_request_after_commit
from ..db.now import Now


class WorkerRequest(StrEnum):
    """What its row asks of a worker."""

    CONTINUE = "go on"
    QUIET = "be quiet"  # claim nothing more, and stay
    STOP = "stop"
    GONE = "gone"  # the row was deleted


class WorkerQuerySet(models.QuerySet["Worker"]):
    """Workers: registration, heartbeats, and what operators ask of them."""

    def register(
        self, worker_id: str, name: str, hostname: str, pid: int, *, is_quiet: bool = False, **facts: Any
    ) -> None:
        """Insert the row of a process that has started; ``facts`` are further columns. Each process has a new id."""
        if is_quiet:
            facts["quiet_since"] = Now()
        row = Worker(id=worker_id, name=name, hostname=hostname, pid=pid, **facts)
        self.bulk_create([row], ignore_conflicts=True)

    def beat(self, worker_id: str, memory: int | None = None) -> WorkerRequest:
        """Record a heartbeat and, if given, the memory in bytes; return what the row asks of the worker.

        This takes one statement, unless the worker is asked to stop or is quiet. While another transaction has locked
        the row, it is not written.
        """
        mine, beat = self._unlocked(worker_id), {"last_beat_at": Now()} | ({} if memory is None else {"memory": memory})
        with transaction.atomic(using=self.db, savepoint=False):
            if mine.accepting().update(**beat):
                return WorkerRequest.CONTINUE
            mine.update(**beat)
        return self.request_of(worker_id)

    def _unlocked(self, worker_id: Any) -> Self:
        """The worker, unless another transaction has locked its row. A worker must not wait for it."""
        row = self.filter(pk=worker_id)
        return self.filter(pk__in=row.select_for_update(skip_locked=True, no_key=True).values("pk"))

    def request_of(self, worker_id: str) -> WorkerRequest:
        """Return what its row asks of the worker."""
        row = self.filter(pk=worker_id).values_list("stop_requested_at", "quiet_since").first()
        return WorkerRequest.GONE if row is None else worker_request(*row)

    def deregister(self, worker_id: str) -> None:
        """Delete the row of a worker that has stopped, unless another transaction has locked it.

        A reaper deletes a row that is left.
        """
        with transaction.atomic(using=self.db, savepoint=False):
            self._unlocked(worker_id).delete()

    def alive(self, seconds: float) -> Self:
        """Workers with a heartbeat in the last ``seconds``."""
        return self.filter(last_beat_at__gte=NowPlus(-seconds))

    def silent(self, seconds: float) -> Self:
        """Workers without a heartbeat in the last ``seconds``."""
        return self.filter(last_beat_at__lt=NowPlus(-seconds))

    def claiming(self) -> Self:
        """Workers that may claim: those that are neither quiet, nor asked to stop, nor stand still."""
        return self.accepting().filter(stalled_since__isnull=True)

    def accepting(self) -> Self:
        """Workers that are neither quiet nor asked to stop. One that stands still for now may claim again later."""
        return self.filter(stop_requested_at__isnull=True, quiet_since__isnull=True)

    def request_stop(self) -> int:
        """Ask these workers to stop claiming, finish their tasks, and exit; return how many were not asked before.

        Each is one runner, which its supervisor does not replace. PostgreSQL notifies them at once. On other databases
        they read it from their rows at the next poll, or at the next heartbeat if all slots are busy.
        """
        return self._request("worker.stop", {"stop_requested_at__isnull": True}, stop_requested_at=Now())

    def quiet(self) -> int:
        """Have these workers claim nothing more until :meth:`resume`; return how many were not quiet before.

        Each is one runner. It hands back what has not started, finishes what it runs, sends heartbeats, and stays; if
        it dies, its replacement is quiet too. They learn of it as of :meth:`request_stop`.
        """
        guard = {"quiet_since__isnull": True, "stop_requested_at__isnull": True}
        return self._request("worker.quiet", guard, quiet_since=Now())

    def resume(self) -> int:
        """Let these workers claim again; return how many were quiet.

        PostgreSQL notifies them at once. On other databases a quiet worker reads its row at each poll interval.
        """
        return self._request("worker.resume", {"quiet_since__isnull": False}, quiet_since=None)

    def _request(self, act: str, guard: dict[str, bool], **values: Any) -> int:
        count, workers = 0, names_of(self, "pk")
        for key in list(self.filter(**guard).values_list("pk", flat=True)):
            if self.model.objects.using(self.db).filter(pk=key, **guard).update(**values):
                count += 1
                notify_worker_request_after_commit(self.db, key)
        log_operation(act, count, worker=workers)
        return count

    def record_quiet(self, worker_id: str, *, is_quiet: bool) -> bool:
        """Record that a worker is quiet, or claims again, by a signal to its process.

        Returns False, and records nothing, while another transaction has locked the row, or if it was deleted.
        """
        with transaction.atomic(using=self.db, savepoint=False):
            mine = self._unlocked(worker_id)
            return bool(mine.update(quiet_since=Coalesce("quiet_since", Now()) if is_quiet else None))

    def record_stalled(self, worker_id: str, seconds: float | None) -> bool:
        """Record that a worker has stood still for some seconds; None: it goes on.

        Returns False, and records nothing, while another transaction has locked the row, or if it was deleted.
        """
        since = None if seconds is None else NowPlus(-seconds)
        with transaction.atomic(using=self.db, savepoint=False):
            return bool(self._unlocked(worker_id).update(stalled_since=since))


class Worker(models.Model):
    """One process that claims tasks. No row refers to it: recovery uses only tasks and their heartbeats."""

    id = models.CharField(_("id"), primary_key=True, max_length=64)
    name = models.CharField(_("name"), max_length=100, blank=True)
    hostname = models.CharField(_("hostname"), max_length=255)
    pid = models.PositiveIntegerField(_("process id"))
    backend = models.CharField(_("backend"), max_length=64, default="default")
    version = models.CharField(_("version"), max_length=32, blank=True)
    # The default is in the database too, for processes of the previous release, which insert without this column.
    code_version = models.CharField(
        _("version of the code"),
        max_length=64,
        blank=True,
        default="",
        db_default="",
        help_text=_("The version of the project."),
    )
    queues = JSONField(
        _("queues"), default=list, blank=True, help_text=_("The queues that the worker serves. Empty: all.")
    )
    excluded_queues = JSONField(_("excluded queues"), default=list, blank=True)
    threads = models.PositiveIntegerField(_("threads"), null=True)
    async_slots = models.PositiveIntegerField(_("async slots"), null=True)
    started_at = DateTimeField(_("started at"), db_default=Now())
    last_beat_at = DateTimeField(_("last heartbeat at"), db_default=Now())
    memory = models.PositiveBigIntegerField(_("memory"), null=True, help_text=_("Bytes, at the last heartbeat."))
    heartbeat_interval = models.FloatField(null=True)  # in seconds
    stop_requested_at = DateTimeField(
        _("stop requested at"),
        null=True,
        blank=True,
        help_text=_("The worker claims no more tasks and exits when none is running."),
    )
    quiet_since = DateTimeField(
        _("quiet since"), null=True, blank=True, help_text=_("It claims no more until it is resumed, and stays.")
    )
    stalled_since = DateTimeField(
        _("stands still since"),
        null=True,
        blank=True,
        help_text=_("Its supervisor sees that its process does not go on."),
    )

    objects = WorkerQuerySet.as_manager()

    class Meta:
        db_table = "horsies_workers"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        permissions = [("stop_worker", "Can stop worker"), ("quiet_worker", "Can quiet worker")]
        constraints = [
            values_in_range(
                "worker",
                "started_at last_beat_at stop_requested_at quiet_since stalled_since heartbeat_interval pid threads "
                "async_slots memory",
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def may_claim(self) -> bool:
        """Whether it is neither quiet, nor asked to stop, nor stands still."""
        return not (self.stop_requested_at or self.quiet_since or self.stalled_since)

    def serves(self, queue: str) -> bool:
        """Return whether it claims from a queue."""
        return queue not in strings_in(self.excluded_queues) and queue in (strings_in(self.queues) or [queue])


def worker_request(stop_requested_at: Any, quiet_since: Any) -> WorkerRequest:
    """Return what a row with these columns asks of its worker. A stop comes first."""
    if stop_requested_at:
        return WorkerRequest.STOP
    return WorkerRequest.QUIET if quiet_since else WorkerRequest.CONTINUE
