"""Reasons for a PENDING task: a condition of the claim that does not hold, or no worker that could claim it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Q, Subquery
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.numbers import fill_numbers, format_number
from ...core.workflow_status import WorkflowStatus
from ...models import Queue, Task, Worker, Workflow
from ...models.transitions import TaskQuerySet
from .limits import limit_key_reason, queue_limit_reasons
from .reason import (
    MAX_RELATED,
    Reason,
    ReasonCode,
    RelatedRow,
    backend_options,
    database_of,
    paused_workflow,
    tasks_in_database_of,
)

#: Upper bound for counting tasks ahead in the queue and tasks that workers hold.
MAX_COUNTED: Final = 1_000

#: How many workers are examined, those with the latest heartbeats first.
MAX_WORKERS: Final = 200

#: Seconds after which a due task without any reason to wait is reported as stuck.
STUCK_AFTER: Final = 60


def pending_reasons(task: Task, now: datetime) -> Iterator[Reason]:
    """Yield why the task waits, the most immediate reason first."""
    rows = tasks_in_database_of(task)
    if task.good_until is not None and task.good_until <= now:
        yield Reason(
            ReasonCode.PAST_DEADLINE, _("Its deadline has passed: the reaper will expire the task."), task.good_until
        )
        return
    is_due = task.enqueued_at <= now
    found = list(_workflow_reasons(task)) if task.workflow_id is not None else []
    if task.unknown_to is not None:
        found.append(_other_version(task, is_due=is_due))
    elif not is_due:
        found.append(_not_due(task))
    found += [limit_key_reason(task, now)] if task.blocked and task.limit_key is not None else []
    found += _queue_and_worker_reasons(task, rows, is_due=is_due and not task.blocked)
    yield from found or [_no_reason_found(now - task.due_at)]


def _not_due(task: Task) -> Reason:
    if task.group_key is not None and task.claim == 0:
        words = ngettext(
            "It is aggregating calls, %d so far, and is due at its time or when the group is full.",
            "It is aggregating calls, %d so far, and is due at its time or when the group is full.",
            task.item_count or 0,
        )
        return Reason(ReasonCode.SCHEDULED, fill_numbers(words, task.item_count or 0), task.enqueued_at)
    if task.next_retry_at is None:
        return Reason(ReasonCode.SCHEDULED, _("It is scheduled and not due yet."), task.enqueued_at)
    words = _("It will be retried after attempt %d and is not due yet.") % task.attempt
    return Reason(ReasonCode.RETRYING, words, task.enqueued_at)


def _other_version(task: Task, *, is_due: bool) -> Reason:
    """Return the reason for a task that was released because this version of the code can't run it."""
    stored = task.unknown_to if isinstance(task.unknown_to, dict) else {}
    versions = stored.get("versions")
    shown = ", ".join(map(str, versions)) if isinstance(versions, list) and versions else "?"
    words = _(
        "It is waiting for a worker with another version of the code: %s does not know the task or one of its values."
    )
    return Reason(ReasonCode.OTHER_VERSION, words % shown, None if is_due else task.enqueued_at)


def _no_reason_found(waited: timedelta) -> Reason:
    if waited.total_seconds() < STUCK_AFTER:
        return Reason(ReasonCode.NOTHING, _("Nothing blocks it: a worker should claim it within seconds."))
    words = _("The database shows no reason why it is waiting. Check the logs of the workers.")
    return Reason(ReasonCode.NOTHING, words)


def _workflow_reasons(task: Task) -> Iterator[Reason]:
    workflows = Workflow.objects.using(database_of(task)).filter(nodes__task=task.pk)
    for workflow in workflows.filter(status=WorkflowStatus.PAUSED).only("pk", "name")[:1]:
        yield paused_workflow(workflow)


def _queue_and_worker_reasons(task: Task, rows: TaskQuerySet, *, is_due: bool) -> Iterator[Reason]:
    name = task.queue_name
    queue = Queue.objects.using(database_of(task)).filter(name=name).only("pk", "paused").first()
    if queue is not None and queue.paused:
        about = RelatedRow(Queue, queue.pk, name)
        yield Reason(ReasonCode.QUEUE_PAUSED, _("The queue %s is paused.") % name, about=(about,))
    elif is_due:
        yield from queue_limit_reasons(task, rows)
    workers = _live_workers(task)
    serving = [worker for worker in workers if worker.serves(name)]
    claiming = [worker for worker in serving if worker.may_claim]
    if not serving:
        yield _no_worker(name, workers)
    elif not claiming:
        yield _none_claims(name, serving)
    elif is_due and not (queue is not None and queue.paused):
        yield from _slot_reasons(task, rows, claiming)


def _no_worker(name: str, workers: Sequence[Worker]) -> Reason:
    if not workers:
        return Reason(ReasonCode.NO_WORKER, _("No worker is online. Start one: manage.py horsies_worker"))
    words = ngettext(
        "No online worker serves the queue %(queue)s; the only one online serves other queues.",
        "No online worker serves the queue %(queue)s; the %(count)d that are online serve other queues.",
        len(workers),
    )
    words = fill_numbers(words, {"queue": name, "count": len(workers)})
    return Reason(ReasonCode.NO_WORKER, words, about=_related_workers(workers))


def _none_claims(name: str, serving: Sequence[Worker]) -> Reason:
    """Return the reason that all workers which serve the queue are stopping, quiet or stand still."""
    code, words = ReasonCode.WORKERS_STOPPING, _("Every worker that serves the queue %s is stopping.")
    if any(worker.quiet_since is not None for worker in serving):
        code, words = ReasonCode.WORKERS_QUIET, _("Every worker that serves the queue %s is quiet or stopping.")
    if any(worker.stalled_since is not None for worker in serving):
        code = ReasonCode.WORKERS_STALLED
        words = _("Every worker that serves the queue %s stands still, is quiet or is stopping.")
    return Reason(code, words % name, about=_related_workers(serving))


def _slot_reasons(task: Task, rows: TaskQuerySet, workers: Sequence[Worker]) -> Iterator[Reason]:
    slots = {worker.pk: worker.async_slots if task.is_async else worker.threads for worker in workers}
    held = Counter(_holders(rows, list(slots), is_async=task.is_async)) if None not in slots.values() else Counter()
    if all(count is not None and held[key] >= count for key, count in slots.items()):
        words = ngettext(
            "All %(slots)d slots of the worker that serves its queue are in use.",
            "All %(slots)d slots of the %(count)d workers that serve its queue are in use.",
            len(workers),
        )
        total = sum(count or 0 for count in slots.values())
        words = fill_numbers(words, {"count": len(workers), "slots": total})
        yield Reason(ReasonCode.WORKERS_BUSY, words, about=_related_workers(workers))
    if ahead := _count_ahead(task, rows):
        words = ngettext(
            "%s due task of its queue is ahead of it.", "%s due tasks of its queue are ahead of it.", ahead
        )
        shown = format_number(ahead) if ahead < MAX_COUNTED else fill_numbers(_("%d or more"), MAX_COUNTED)
        yield Reason(ReasonCode.OTHERS_FIRST, words % shown)


def _holders(rows: TaskQuerySet, workers: Sequence[str], *, is_async: bool) -> list[str]:
    """Return the worker id of each held task of one kind, sync or async. Reads the index of held rows."""
    held = rows.active().filter(claimed_by_worker_id__in=workers).values_list("claimed_by_worker_id", "is_async")
    return [str(worker) for worker, kind in held[: MAX_COUNTED * 10] if kind == is_async]


def _count_ahead(task: Task, rows: TaskQuerySet) -> int:
    """Count the due tasks of the same queue and kind that come first, up to ``MAX_COUNTED``. Reads the claim index."""
    others = rows.waiting(is_async=task.is_async).due().filter(queue_name=task.queue_name)
    higher = others.filter(priority__gt=task.priority)[:MAX_COUNTED].count()
    # Compare with the stored time: the value in Python may have a higher precision. The index serves the range up to
    # that time; the primary key breaks ties.
    due = Subquery(rows.filter(pk=task.pk).values("enqueued_at"))
    is_earlier = Q(enqueued_at__lt=due) | Q(pk__lt=task.pk)
    same = others.filter(is_earlier, priority=task.priority, enqueued_at__lte=due)
    return higher + same[: MAX_COUNTED - higher].count() if higher < MAX_COUNTED else MAX_COUNTED


def _live_workers(task: Task) -> list[Worker]:
    """Return the workers with a recent heartbeat. The table has one row per process, so it is small."""
    threshold = backend_options(task.backend).recovery.claimed_stale_after
    alive = Worker.objects.using(database_of(task)).alive(threshold)
    return list(alive.order_by("-last_beat_at")[:MAX_WORKERS])


def _related_workers(workers: Sequence[Worker]) -> tuple[RelatedRow, ...]:
    return tuple(RelatedRow(Worker, worker.pk, worker.pk) for worker in workers[:MAX_RELATED])
