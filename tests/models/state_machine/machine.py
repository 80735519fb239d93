"""The whole machine: users and workers, recovery from dead workers, and the passing of time."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from horsies_django import reclaim
from horsies_django.core.status import TaskStatus
from horsies_django.models import Task
from horsies_django.reaper.crashed import recover_all
from horsies_django.reaper.duties import run_pass

from .model import ENDED_AT, LIVE
from .senders import People
from .strategies import places
from .workers import EVERY, Workers


class TaskMachine(People, Workers):
    """A table, its workers, its reapers and its people."""

    @precondition(lambda self: self.held_claims())
    @rule(place=places, gives_up=st.booleans())
    def leave(self, place: int, gives_up: bool) -> None:
        """A worker stops and does not wait any longer for what it runs, or is found dead."""
        worker = self.holders()[place % len(self.holders())]
        if gives_up:
            self.store_of(worker).recover_held()
        else:
            recover_all(Task.objects.held_by(worker))
        self.model.recover(lambda row: row.worker == worker, overrun=gives_up)

    @precondition(lambda self: self.held_claims())
    @rule(seconds=st.sampled_from([150, 150, 50]), by_hand=st.booleans())
    def fall_silent(self, seconds: int, by_hand: bool) -> None:
        """No worker beats for a time, and a reaper comes by, or a person who does not wait for it."""
        self.move_time(seconds)
        if by_hand:
            reclaim(70)
            self.model.recover(lambda row: self.model.now - row.beat_at > 70)
        else:
            self.reap()

    @precondition(lambda self: self.held_claims())
    @rule()
    def outlast(self) -> None:
        """Workers beat for longer than it takes to look dead, and a reaper comes by."""
        self.move_time(100)
        self.beat(EVERY)
        self.move_time(50)
        self.reap()

    @rule()
    def reap(self) -> None:
        reports = run_pass(self.config.options)
        assert not [report for report in reports if report.error]
        self.model.reap()

    @rule(seconds=st.sampled_from([50, 100, 150]))
    def pass_time(self, seconds: int) -> None:
        self.move_time(seconds)


assert set(TaskStatus.values) == {*LIVE, *ENDED_AT}
