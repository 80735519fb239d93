"""Figures of queues and workers: what waits where, and who holds what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from django.db.models import Count, Q, QuerySet, Sum
from django.utils.formats import number_format
from django.utils.translation import gettext, ngettext

from ...core.compat import DEFAULT_TASK_QUEUE_NAME, task_backends
from ...core.options import RecoveryOptions
from ...core.status import AttemptOutcome, TaskStatus
from ...db.expressions import NowPlus, SecondsUntil
from ...enqueue.backend import HorsiesBackend
from ...models import Queue, Rollup, Task, Worker
from ...models.depths import Depth, Depths, depths
from ...models.rollup import Span
from ...ops.queue_status import QueueStatus, row_values, seconds_since_refill, status_from_row

#: Tasks that wait for their time: so many are counted, those first that are due first.
MAX_COUNTED: Final = 2_000

#: Queues with a row that the list has at most, and of those that neither have one nor are named by the settings.
MAX_QUEUES: Final = 1_000
MAX_OTHER_QUEUES: Final = 200

#: Tasks of one worker that a list names.
MAX_NAMED: Final = 3

#: Tasks that workers hold, of which a page tells at most.
MAX_HELD: Final = 1_000


def silent_after() -> float:
    """Return the seconds without a beat after which a worker is taken for dead; the least of all backends."""
    backends = (task_backends[alias] for alias in task_backends)
    limits = [one.config.recovery.stale_after for one in backends if isinstance(one, HorsiesBackend)]
    return min(limits, default=RecoveryOptions().stale_after)


@dataclass(frozen=True, slots=True)
class HeldTask:
    """One task that a worker holds."""

    task_id: Any
    task_name: str
    is_running: bool
    seconds: float | None


@dataclass(slots=True)
class WorkerLoad:
    """What one worker holds: how many, of which kind, and the oldest of them, where they are named."""

    sync: int = 0
    coroutines: int = 0
    held_tasks: list[HeldTask] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many it holds."""
        return self.sync + self.coroutines


def worker_loads(worker_ids: Collection[str], database: str | None, *, named: bool) -> dict[str, WorkerLoad]:
    """Return what each of these workers holds, by the index of held rows, in two statements; without names in one."""
    found: dict[str, WorkerLoad] = defaultdict(WorkerLoad)
    held = Task.objects.using(database).active().filter(claimed_by_worker_id__in=worker_ids).order_by()
    for worker_id, is_async, count in held.values_list("claimed_by_worker_id", "is_async").annotate(Count("pk")):
        if is_async:
            found[worker_id].coroutines += count
        else:
            found[worker_id].sync += count
    if not named:
        return found
    columns = ("claimed_by_worker_id", "pk", "task_name", "status", SecondsUntil("started_at"))
    for worker_id, key, name, status, seconds in held.order_by("claimed_at").values_list(*columns)[:MAX_HELD]:
        age = None if seconds is None else -seconds
        found[worker_id].held_tasks.append(HeldTask(key, name, status == TaskStatus.RUNNING, age))
    return found


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """What there is to say of one queue now."""

    depth: Depth = field(default_factory=Depth)
    scheduled: int = 0
    is_scheduled_more: bool = False
    held: int = 0
    ended: int = 0
    failed: int = 0
    workers: tuple[str, ...] = ()
    status: QueueStatus | None = None

    @property
    def shown_due(self) -> str:
        """How many are due."""
        return format_lower_bound(self.depth.due, self.depth.is_more)

    @property
    def shown_scheduled(self) -> str:
        """How many wait for their time; where only those of other queues were counted, that."""
        if self.is_scheduled_more and not self.scheduled:
            return gettext("none of the next %s") % number_format(MAX_COUNTED, force_grouping=True)
        return format_lower_bound(self.scheduled, self.is_scheduled_more)

    @property
    def shown_hour(self) -> str:
        """What ended in the last hour."""
        if not self.failed:
            return str(self.ended)
        return ngettext("%(ended)d, %(failed)d failed", "%(ended)d, %(failed)d failed", self.failed) % {
            "ended": self.ended,
            "failed": self.failed,
        }


def format_lower_bound(count: int, is_more: bool) -> str:
    """Return a count that may be but the least."""
    return number_format(count, force_grouping=True) + ("+" if is_more else "")


class KnownQueues(list[Queue]):
    """Queues. ``is_more`` is whether there are others too."""

    is_more: bool = False


def known_queues(rows: QuerySet[Queue], database: str | None) -> KnownQueues:
    """Return the queues that are known, with their figures: those with a row, of the settings, with tasks that live.

    One without a row has ``~`` and its name for a key. Where there are very many, those are left out that are neither
    in the settings nor among the first.
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
    """Give each queue its figures, and to these the workers that serve it."""
    queues = list(queues)
    workers = _serving_workers([queue.name for queue in queues], database)
    since = seconds_since_refill(database) if any(queue.tokens is not None for queue in queues) else {}
    for queue in queues:
        known = loads[queue.name]
        stands = status_from_row(queue.name, row_values(queue, since.get(queue.name)), known.held, database)
        queue.load = replace(known, workers=tuple(workers[queue.name]), status=stands)


def unsaved_queue(name: str) -> Queue:
    """Return a queue of which there is no row."""
    queue = Queue(name=name)
    queue.pk = f"~{name}"  # until something is said of it
    return queue


def queue_loads(database: str | None, only: str | None = None) -> defaultdict[str, QueueLoad]:
    """Return the figures of queues that have any, or of one, in six statements; of others, what is known of them."""
    return _queue_loads(database, depths(Task.objects.using(database).order_by(), only), only)


def _queue_loads(database: str | None, due: Depths, only: str | None = None) -> defaultdict[str, QueueLoad]:
    tasks, rollups = Task.objects.using(database).order_by(), Rollup.objects.using(database).order_by()
    # Of all queues: no index has them by queue, and few of one among millions would be long to find.
    deferred = tasks.deferred().order_by("enqueued_at").values_list("queue_name", flat=True)
    waiting = list(deferred[: MAX_COUNTED + 1])
    if only is not None:
        tasks, rollups = tasks.filter(queue_name=only), rollups.filter(queue_name=only)
    scheduled = _tally(waiting[:MAX_COUNTED])
    held = dict(tasks.active().values_list("queue_name").annotate(Count("pk")))
    hour = _last_hour(rollups)
    is_more = len(waiting) > MAX_COUNTED
    found = defaultdict(lambda: QueueLoad(Depth(is_more=due.is_more), is_scheduled_more=is_more))
    for name in {*due, *scheduled, *held, *hour} - {""}:  # tasks that are gone have no queue any more
        ended = hour.get(name, (0, 0))
        found[name] = QueueLoad(due.of(name), scheduled.get(name, 0), is_more, held.get(name, 0), *ended)
    return found


def _tally(names: Iterable[str]) -> dict[str, int]:
    counted: dict[str, int] = defaultdict(int)
    for name in names:
        counted[name] += 1
    return counted


def _last_hour(rollups: QuerySet[Rollup]) -> dict[str, tuple[int, int]]:
    """Return how many attempts ended in each queue in the last hour, and how many of them for good without success."""
    rows = rollups.filter(span=Span.MINUTE, start__gte=NowPlus(-3_600))
    lost = Q(will_retry=False) & ~Q(outcome=AttemptOutcome.COMPLETED)
    sums = rows.values_list("queue_name").annotate(ended=Sum("count"), lost=Sum("count", filter=lost))
    return {name: (ended or 0, failed or 0) for name, ended, failed in sums}


def _serving_workers(names: Iterable[str], database: str | None) -> dict[str, list[str]]:
    """Return for each queue the ids of the workers that serve it: alive, and not on their way out."""
    workers = Worker.objects.using(database).filter(stop_requested_at__isnull=True)
    alive = workers.filter(last_beat_at__gte=NowPlus(-silent_after()))
    serving: dict[str, list[str]] = defaultdict(list)
    for worker in alive.order_by("pk").only("queues", "excluded_queues")[:MAX_HELD]:
        for name in filter(worker.serves, names):
            serving[name].append(worker.pk)
    return serving
