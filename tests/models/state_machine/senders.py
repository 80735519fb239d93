"""The actions of senders and users."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from horsies_django import TaskHandle
from horsies_django.models import Queue, Task

from . import jobs
from .base import Base
from .model import ENDED_AT
from .strategies import QUEUES, Send, places, sends, some_rows


class People(Base):
    """Send, cancel, retry, pause."""

    @precondition(lambda self: self.live() < 3 and len(self.model.rows) < 7)
    @rule(send=sends)
    def send(self, send: Send) -> None:
        self.add(send)

    @precondition(lambda self: self.live() > 2)
    @rule(indexes=some_rows, include_running=st.booleans())
    def cancel(self, indexes: list[int], include_running: bool) -> None:
        """One row through its handle, several in bulk."""
        keys = self.rows(indexes)
        if len(keys) == 1:
            count = int(TaskHandle[Any](keys[0]).cancel(include_running=include_running))
        else:
            count = Task.objects.filter(pk__in=keys).cancel(include_running=include_running)
        assert count == self.model.cancel(keys, include_running=include_running)

    @precondition(lambda self: self.held_claims("CLAIMED"))
    @rule(place=places, include_running=st.booleans())
    def cancel_claimed(self, place: int, include_running: bool) -> None:
        self.cancel_one("CLAIMED", place, include_running)

    @precondition(lambda self: self.held_claims("RUNNING"))
    @rule(place=places, include_running=st.sampled_from([True, True, False]))
    def cancel_running(self, place: int, include_running: bool) -> None:
        self.cancel_one("RUNNING", place, include_running)

    def cancel_one(self, status: str, place: int, include_running: bool) -> None:
        held = self.held_claims(status)
        key = held[place % len(held)].claim.task_id
        cancelled = TaskHandle[Any](key).cancel(include_running=include_running)
        assert cancelled is bool(self.model.cancel([key], include_running=include_running))

    @precondition(lambda self: self.model.holder("a") or self.model.holder("b"))
    @rule(unique_key=st.sampled_from(["a", "b"]), include_running=st.booleans())
    def cancel_by_key(self, unique_key: str, include_running: bool) -> None:
        holder = self.model.holder(unique_key)
        keys = [] if holder is None else [holder]
        cancelled = jobs.act.cancel(unique_key, include_running=include_running)
        assert cancelled is bool(self.model.cancel(keys, include_running=include_running))

    @precondition(lambda self: self.statuses() & ENDED_AT.keys())
    @rule(indexes=some_rows)
    def retry(self, indexes: list[int]) -> None:
        """One row through its handle, several in bulk."""
        keys = self.rows(indexes)
        count = int(TaskHandle[Any](keys[0]).retry()) if len(keys) == 1 else Task.objects.filter(pk__in=keys).retry()
        assert count == self.model.retry(keys)

    @rule(queue=st.sampled_from(QUEUES))
    def pause_or_resume(self, queue: str) -> None:
        """Never pause both queues at once: a pause hides much else."""
        self.model.paused = set() if self.model.paused else {queue}
        for name in QUEUES:
            Queue.objects.filter(name=name).update(paused=name in self.model.paused)
