"""A table of random tasks in every state, with their attempts, limits, queues, workflows and workers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any

from horsies_django import Workflow as Definition
from horsies_django.db.clock import database_now
from horsies_django.models import Limit, Queue, Task, TaskAttempt, Worker
from horsies_django.models.attempt import AttemptError
from tests.jobs import limited, tasks

QUEUES = ("default", "emails", "reports")
NAMES = (tasks.noop.task_name, tasks.fail.task_name, limited.two_per_user.task_name)
LIMITS = tuple(f"{limited.two_per_user.task_name}:{user}" for user in "abc")
ERRORS = (
    AttemptError("REFUSED", "", exception_class="shop.Refused", location="shop.pay"),
    AttemptError("AWAY", "", exception_class="shop.Away", location="shop.ship"),
)
COLUMNS = ("exception_class", "location", "fingerprint")


class RandomTasks:
    """Inserts random tasks. All times are minutes from a boundary, so that no state changes while a test reads."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.now: datetime = database_now("default")
        self._tasks: list[Task] = []
        self._attempts: list[TaskAttempt] = []

    def insert(self, count: int) -> None:
        """Insert about ``count`` tasks: each state at least once."""
        Queue.objects.create(name="emails", paused=True)
        for key in LIMITS:
            Limit.objects.create(key=key, max_concurrency=2)
        for worker in ("w1", "w2"):
            Worker.objects.register(worker, worker, "host", 1)
        handle = Definition("held", [tasks.noop.node()()]).start()
        assert handle.pause()
        self._workflow = handle.id
        kinds = [getattr(self, name) for name in sorted(dir(type(self))) if name.startswith("_of_")]
        for kind in [*kinds, *self._random.choices(kinds, k=count)]:
            self._add(kind)
        Task.objects.bulk_create(self._tasks)
        TaskAttempt.objects.bulk_create(self._attempts)

    def _add(self, kind: Callable[[], dict[str, Any]]) -> None:
        choose = self._random.choice
        sent_at = self._ago(180, 600)
        columns = {"sent_at": sent_at, "enqueued_at": self._ago(5, 170), "priority": choose((-1, 0, 0, 5))}
        columns |= {"task_name": choose(NAMES), "queue_name": choose(QUEUES), "is_async": choose((False, True))}
        task = Task(**columns | kind())
        self._tasks.append(task)
        if task.attempt and task.status in ("PENDING", "COMPLETED", "FAILED"):
            self._attempts.append(self._attempt_of(task))

    def _attempt_of(self, task: Task) -> TaskAttempt:
        error = next((error for error in ERRORS if error.fingerprint == task.fingerprint), None)
        finished_at = task.finished_at or self._ago(1, 4)
        started_at = finished_at - timedelta(seconds=self._random.choice((1, 4, 20, 45)))
        due_at = started_at - timedelta(seconds=self._random.choice((0, 3, 70, 600)))
        outcome = "COMPLETED" if error is None else "FAILED"
        columns = {} if error is None else {name: getattr(error, name) for name in COLUMNS} | {"error_code": error.code}
        times = {"due_at": due_at, "started_at": started_at, "finished_at": finished_at}
        will_retry = task.status == "PENDING"
        return TaskAttempt(task_id=task.pk, attempt=1, outcome=outcome, will_retry=will_retry, **times, **columns)

    def _ago(self, least: int, most: int) -> datetime:
        return self.now - timedelta(minutes=self._random.randint(least, most))

    def _later(self) -> datetime:
        return self.now + timedelta(minutes=self._random.randint(60, 600))

    # A function for each kind of task: its columns.

    def _of_due(self) -> dict[str, Any]:
        return {"good_until": self._random.choice((None, self._later()))}

    def _of_due_since_a_moment(self) -> dict[str, Any]:
        return {"deferred": True}

    def _of_overdue(self) -> dict[str, Any]:
        return {"good_until": self._ago(1, 4)}

    def _of_scheduled(self) -> dict[str, Any]:
        return {"deferred": True, "enqueued_at": self._later()}

    def _of_aggregating(self) -> dict[str, Any]:
        return self._of_scheduled() | {"group_key": f"g{len(self._tasks)}", "item_count": 3}

    def _of_retrying(self) -> dict[str, Any]:
        return self._retried() | {"deferred": True, "enqueued_at": (later := self._later()), "next_retry_at": later}

    def _of_awaiting(self) -> dict[str, Any]:
        return self._of_scheduled() | {"claim": 1, "waits_for": self._random.choice(("event:approved", "sleep"))}

    def _of_due_retry(self) -> dict[str, Any]:
        return self._retried() | {"next_retry_at": self._ago(1, 4)}

    def _retried(self) -> dict[str, Any]:
        error = self._random.choice(ERRORS)
        return {"attempt": 1, "claim": 1, "retry_count": 1, "error_code": error.code, "fingerprint": error.fingerprint}

    def _of_blocked(self) -> dict[str, Any]:
        return {"limit_key": self._random.choice(LIMITS), "blocked": True, "deferred": True}

    def _of_blocked_retry(self) -> dict[str, Any]:
        return self._of_blocked() | self._retried() | {"next_retry_at": self._ago(1, 4)}

    def _of_blocked_past_deadline(self) -> dict[str, Any]:
        return self._of_blocked() | self._of_overdue()

    def _of_released(self) -> dict[str, Any]:
        return {"limit_key": self._random.choice(LIMITS), "released_at": self._ago(1, 4)}

    def _of_resumed(self) -> dict[str, Any]:
        return {"workflow_id": self._workflow, "claim": 1, "released_at": self._ago(1, 4)}

    def _of_held_by_a_paused_workflow(self) -> dict[str, Any]:
        return {"blocked": True, "deferred": True, "workflow_id": self._workflow, "claim": 1}

    def _of_claimed(self) -> dict[str, Any]:
        worker = self._random.choice(("w1", "w2"))
        claimed_at = self._ago(1, 4)
        return {"status": "CLAIMED", "claim": 1, "claimed_by_worker_id": worker, "claimed_at": claimed_at}

    def _of_running(self) -> dict[str, Any]:
        limit_key = self._random.choice((None, *LIMITS))
        columns = self._of_claimed()
        return columns | {
            "status": "RUNNING",
            "started_at": columns["claimed_at"],
            "attempt": 1,
            "limit_key": limit_key,
        }

    def _of_completed(self) -> dict[str, Any]:
        return self._ended("COMPLETED", "completed_at", None)

    def _of_failed(self) -> dict[str, Any]:
        return self._ended("FAILED", "failed_at", self._random.choice(ERRORS))

    def _of_cancelled(self) -> dict[str, Any]:
        return {"status": "CANCELLED", "cancelled_at": self._ago(1, 4)}

    def _of_expired(self) -> dict[str, Any]:
        return {"status": "EXPIRED", "expired_at": self._ago(1, 4), "good_until": self._ago(5, 9)}

    def _ended(self, status: str, column: str, error: AttemptError | None) -> dict[str, Any]:
        columns = {"status": status, column: self._ago(1, 4), "attempt": 1, "claim": 1}
        return columns if error is None else columns | {"error_code": error.code, "fingerprint": error.fingerprint}
