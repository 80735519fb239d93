"""The load of queues and workers: waiting tasks by queue, held tasks by worker."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any, Final

from django.db.models import Case, Count, Q, QuerySet, Sum, When
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from ...core.compat import DEFAULT_TASK_QUEUE_NAME, task_backends
from ...core.numbers import fill_numbers, format_lower_bound, format_number
from ...core.options import RecoveryOptions
from ...core.status import AttemptOutcome, TaskStatus
from ...db.expressions import NowPlus, SecondsUntil
from ...enqueue.backend import HorsiesBackend
from ...models import Queue, Rollup, Task, Worker
from ...models.depths import Depth, Depths, depths
from ...models.filters import IS_SCHEDULED
from ...models.rollup import RollupSpan
from ...ops.metrics.snapshot import database_second
from ...ops.queue_status import QueueStatus, row_values, seconds_since_refill, status_from_row
from ..ages import age, age_at

#: Maximum number of counted deferred tasks, the earliest first.
MAX_COUNTED: Final = 2_000

#: Maximum number of listed queues with a row, and of those with neither a row nor an entry in the settings.
MAX_QUEUES: Final = 1_000
MAX_OTHER_QUEUES: Final = 200

#: Maximum number of a worker's tasks named in the list.
MAX_NAMED: Final = 3

#: Maximum number of held tasks named on a page.
MAX_HELD: Final = 1_000


def silent_after() -> float:
    """Return the seconds without a heartbeat after which a worker is taken for dead; the minimum of all backends."""
    backends = (task_backends[alias] for alias in task_backends)
    limits = [one.config.recovery.stale_after for one in backends if isinstance(one, HorsiesBackend)]
    return min(limits, default=RecoveryOptions().stale_after)


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task that a worker holds."""

    task_id: Any
    task_name: str
    is_running: bool
    started_at: datetime | None
    seconds: float | None

    @property
    def shown_age(self) -> SafeString | str:
        """How long it has run; a dash if it has not started."""
        if self.started_at is None or self.seconds is None:
            return "-"
        return age(self.seconds, self.started_at, "full")


@dataclass(slots=True)
class WorkerLoad:
    """What a worker holds: numbers by kind and, if requested, its oldest tasks."""

    sync: int = 0
    coroutines: int = 0
    held_tasks: list[HeldTask] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of held tasks."""
        return self.sync + self.coroutines


def worker_loads(worker_ids: Collection[str], database: str | None, *, named: bool) -> dict[str, WorkerLoad]:
    """Return what each worker holds, by the index of held rows. Takes two statements, one without names."""
    found: dict[str, WorkerLoad] = defaultdict(WorkerLoad)
    held = Task.objects.using(database).active().filter(claimed_by_worker_id__in=worker_ids).order_by()
    for worker_id, is_async, count in held.values_list("claimed_by_worker_id", "is_async").annotate(Count("pk")):
        if is_async:
            found[worker_id].coroutines += count
        else:
            found[worker_id].sync += count
    if not named:
        return found
    columns = ("claimed_by_worker_id", "pk", "task_name", "status", "started_at", SecondsUntil("started_at"))
    oldest = held.order_by("claimed_at")[:MAX_HELD]
    for worker_id, key, name, status, started_at, seconds in oldest.values_list(*columns):
        running_for = None if seconds is None else -seconds
        found[worker_id].held_tasks.append(HeldTask(key, name, status == TaskStatus.RUNNING, started_at, running_for))
    return found


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """The current load of a queue."""

    depth: Depth = field(default_factory=Depth)
    scheduled: int = 0
    is_scheduled_more: bool = False
    held: int = 0
    ended: int = 0
    failed: int = 0
    workers: tuple[str, ...] = ()
    status: QueueStatus | None = None
    now: float = 0.0  # seconds since 1970 by the database's clock

    @property
    def shown_latency(self) -> SafeString | str:
        """The age of the oldest due task."""
        return age_at(self.depth.waits, self.now, "full")

    @property
    def shown_due(self) -> str:
        """The number of due tasks."""
        return format_lower_bound(self.depth.due, self.depth.is_more)

    @property
    def shown_blocked(self) -> SafeString | str:
        """The number of blocked tasks, and how long the oldest has waited for its limit."""
        number = format_lower_bound(self.depth.blocked, self.depth.is_more_blocked)
        if self.depth.blocked_waits is None:
            return number
        return format_html("{} ({})", number, age_at(self.depth.blocked_waits, self.now, "full"))

    @property
    def shown_scheduled(self) -> str:
        """The number of scheduled tasks, or that it is zero among the counted ones."""
        if self.is_scheduled_more and not self.scheduled:
            return gettext("0 (of next %s)") % format_number(MAX_COUNTED)
        return format_lower_bound(self.scheduled, self.is_scheduled_more)

    @property
    def shown_hour(self) -> str:
        """The number of attempts that ended in the last hour."""
        if not self.failed:
            return format_number(self.ended)
        words = ngettext("%(ended)d, %(failed)d failed", "%(ended)d, %(failed)d failed", self.failed)
        return fill_numbers(words, {"ended": self.ended, "failed": self.failed})


class KnownQueues(list[Queue]):
    """A list of queues. ``is_more``: others were left out."""

    is_more: bool = False


def known_queues(rows: QuerySet[Queue], database: str | None) -> KnownQueues:
    """Return queues with their load: those with a row, in the settings, or with tasks that have not ended.

    A queue without a row has the key ``~`` plus its name. If there are too many, those beyond the first that are not
    in the settings are left out.
    """
    saved = {queue.name: queue for queue in rows[: MAX_QUEUES + 1]}
    configured = set().union(*(set(task_backends[at].queues) or {DEFAULT_TASK_QUEUE_NAME} for at in task_backends))
    due = depths(Task.objects.using(database).order_by(), also=[*sorted(configured), *saved])
    loads = _queue_loads(database, due)
    others = [name for name in dict.fromkeys([*due, *sorted(loads)]) if name not in saved and name not in configured]
    names = {*islice(saved, MAX_QUEUES), *configured, *islice(others, MAX_OTHER_QUEUES)}
    known = KnownQueues(saved.get(name) or unsaved_queue(name) for name in sorted(names))
    known.is_more = due.is_more or len(saved) > MAX_QUEUES or len(others) > MAX_OTHER_QUEUES
    attach_loads(known, loads, database)
    return known


def attach_loads(queues: Iterable[Any], loads: defaultdict[str, QueueLoad], database: str | None) -> None:
    """Set each queue's load, with the workers that serve it."""
    queues = list(queues)
    workers = _serving_workers([queue.name for queue in queues], database)
    depths_of = [loads[queue.name].depth for queue in queues]
    now = database_second(database) if any(depth.due or depth.blocked for depth in depths_of) else 0.0
    since = seconds_since_refill(database) if any(queue.tokens is not None for queue in queues) else {}
    for queue in queues:
        known = loads[queue.name]
        status = status_from_row(queue.name, row_values(queue, since.get(queue.name)), known.held, database)
        queue.load = replace(known, workers=tuple(workers[queue.name]), status=status, now=now)


def unsaved_queue(name: str) -> Queue:
    """Return a Queue that is not in the table."""
    queue = Queue(name=name)
    queue.pk = f"~{name}"  # a placeholder until the row is made
    return queue


def queue_loads(database: str | None, only: str | None = None) -> defaultdict[str, QueueLoad]:
    """Return the load of all queues that have any, or of one queue. Takes seven statements."""
    return _queue_loads(database, depths(Task.objects.using(database).order_by(), only), only)


def _queue_loads(database: str | None, due: Depths, only: str | None = None) -> defaultdict[str, QueueLoad]:
    tasks, rollups = Task.objects.using(database).order_by(), Rollup.objects.using(database).order_by()
    # All queues are counted: no index is by queue, and finding one queue's few among millions would take long.
    deferred = tasks.deferred().order_by("enqueued_at").annotate(is_scheduled=Case(When(IS_SCHEDULED, then=True)))
    waiting = list(deferred.values_list("queue_name", "is_scheduled")[: MAX_COUNTED + 1])
    if only is not None:
        tasks, rollups = tasks.filter(queue_name=only), rollups.filter(queue_name=only)
    scheduled = Counter(name for name, is_scheduled in waiting[:MAX_COUNTED] if is_scheduled)
    held = dict(tasks.active().values_list("queue_name").annotate(Count("pk")))
    hour = _last_hour(rollups)
    is_more = len(waiting) > MAX_COUNTED
    found = defaultdict(lambda: QueueLoad(due.of(""), is_scheduled_more=is_more))
    for name in {*due, *scheduled, *held, *hour} - {""}:  # tasks of deleted rows have no queue
        ended = hour.get(name, (0, 0))
        found[name] = QueueLoad(due.of(name), scheduled.get(name, 0), is_more, held.get(name, 0), *ended)
    return found


def _last_hour(rollups: QuerySet[Rollup]) -> dict[str, tuple[int, int]]:
    """Return by queue how many attempts ended in the last hour, and how many of them failed for good."""
    rows = rollups.filter(span=RollupSpan.MINUTE, start__gte=NowPlus(-3_600))
    lost = Q(will_retry=False) & ~Q(outcome=AttemptOutcome.COMPLETED)
    sums = rows.values_list("queue_name").annotate(ended=Sum("count"), lost=Sum("count", filter=lost))
    return {name: (ended or 0, failed or 0) for name, ended, failed in sums}


def _serving_workers(names: Iterable[str], database: str | None) -> dict[str, list[str]]:
    """Return by queue the ids of its workers that are alive and may claim."""
    alive = Worker.objects.using(database).claiming().alive(silent_after())
    serving: dict[str, list[str]] = defaultdict(list)
    for worker in alive.order_by("pk").only("queues", "excluded_queues")[:MAX_HELD]:
        for name in filter(worker.serves, names):
            serving[name].append(worker.pk)
    return serving
