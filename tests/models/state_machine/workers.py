"""The actions of workers."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from horsies_django import TaskStatus

from .base import Base, Taken
from .strategies import Pick, endings, picks, places, some_picks, workers

EVERY = [Pick(True, place) for place in range(8)]


class Workers(Base):
    """Claim, start, end, release, send heartbeats."""

    @precondition(lambda self: self.model.claimable())
    @rule(worker=workers, start=st.integers(1, 3))
    def claim_and_start(self, worker: str, start: int) -> None:
        self.claim(worker, start, 0)

    @precondition(lambda self: self.model.claimable())
    @rule(worker=workers, prefetch=st.integers(1, 2))
    def prefetch(self, worker: str, prefetch: int) -> None:
        self.claim(worker, 0, prefetch)

    @rule(worker=workers, start=st.integers(0, 2), prefetch=st.integers(0, 2))
    def claim(self, worker: str, start: int, prefetch: int) -> None:
        """The table decides the order of equally ranked tasks, the model which tasks may be claimed."""
        store, pool = self.store_of(worker), self.pool(start, prefetch)
        scan = store.scan([pool])
        if scan.deferred_in is not None and scan.deferred_in <= 0:
            with store.transaction():
                store.tasks.make_due_claimable()
            scan = store.scan([pool])
        claimable = self.model.claimable()
        pool.queues = tuple(queue.queue_name for queue in scan.queues[0] if not queue.is_paused)
        assert bool(pool.queues) == bool(claimable)
        claims = store.complete_and_claim(pool, [], start)
        claims += store.complete_and_claim(pool, [], prefetch, starts=False)
        ranks = [self.model.rank(claim.task_id) for claim in claims]
        best = sorted(map(self.model.rank, claimable))
        assert {claim.task_id for claim in claims} <= set(claimable), "claimed a task that is not claimable"
        assert ranks == best[: start + prefetch], "claimed in the wrong order, or too few"
        for number, claim in enumerate(claims):
            self.model.claim(claim.task_id, worker, start=number < start)
            assert claim.claim == self.model.rows[claim.task_id].claim
            self.taken.append(Taken(worker, claim))

    @precondition(lambda self: self.held_claims("CLAIMED"))
    @rule(which=some_picks)
    def start(self, which: list[Pick]) -> None:
        for worker, taken in self.by_worker(which, "CLAIMED"):
            store = self.store_of(worker)
            with store.transaction():
                may = store.start([each.claim for each in taken])
            for each in taken:
                self.model.start(*each.key)
            assert {(claim.task_id, claim.claim) for claim in may} == {
                each.key for each in taken if self.model.held(*each.key, "RUNNING")
            }

    @precondition(lambda self: self.deadlines())
    @rule()
    def start_late(self) -> None:
        """No slot was free until a deadline had passed."""
        self.move_time(max(0, min(self.deadlines()) - self.model.now))
        self.start(EVERY)

    def deadlines(self) -> list[int]:
        rows = [self.model.rows[each.claim.task_id] for each in self.held_claims("CLAIMED")]
        return [row.good_until for row in rows if row.good_until is not None]

    @precondition(lambda self: self.held_claims("RUNNING"))
    @rule(which=some_picks)
    def complete(self, which: list[Pick]) -> None:
        self.store(which, "ok")

    @precondition(lambda self: self.held_claims("RUNNING"))
    @rule(which=some_picks)
    def snooze(self, which: list[Pick]) -> None:
        self.store(which, "snooze")

    @precondition(lambda self: self.held_claims("RUNNING"))
    @rule(which=some_picks, how=endings)
    def end(self, which: list[Pick], how: str) -> None:
        """End mostly running tasks; some ends are of older claims."""
        self.store(which, how)

    @precondition(lambda self: self.held_claims("RUNNING"))
    @rule(worker=workers)
    def wear_out(self, worker: str) -> None:
        """Fail until no retry is left."""
        for _ in range(3):
            self.store(EVERY, "USER_CODE")
            self.move_time(100)
            self.claim(worker, 8, 0)

    @precondition(lambda self: self.held_claims("RUNNING"))
    @rule(which=some_picks)
    def retry_by_policy(self, which: list[Pick]) -> None:
        """Raise ``Retry()`` without a delay; without a policy the retry is due within seconds, so let them pass."""
        self.store(which, "retry by policy")
        self.move_time(50)

    @precondition(lambda self: self.lost_claims())
    @rule(place=places, how=endings)
    def late_end(self, place: int, how: str) -> None:
        """A body continues or begins after a reaper or a user took its claim away."""
        lost = self.lost_claims()[::-1]
        each = lost[place % len(lost)]
        self.write(each.worker, [self.run_body(each, how)])

    def store(self, which: list[Pick], how: str) -> None:
        for worker, taken in self.by_worker(which, "RUNNING"):
            ends = [self.run_body(each, how) for each in taken]
            self.write(worker, ends)
            for each in taken:
                self.model.end(*each.key, how)

    @precondition(lambda self: self.held_claims("RUNNING"))
    @rule(which=picks, how=endings, seconds=st.sampled_from([0, 50]))
    def end_twice(self, which: Pick, how: str, seconds: int) -> None:
        """The reply to a commit was lost, so the same result is stored again."""
        for worker, taken in self.by_worker([which], "RUNNING"):
            ends = [self.run_body(each, how) for each in taken]
            self.write(worker, ends)
            for each in taken:
                self.model.end(*each.key, how)
            self.move_time(seconds)
            self.write(worker, ends)

    @precondition(lambda self: self.held_claims("CLAIMED"))
    @rule(which=some_picks)
    def release(self, which: list[Pick]) -> None:
        for worker, taken in self.by_worker(which, "CLAIMED"):
            store = self.store_of(worker)
            with store.transaction():
                store.release([each.claim for each in taken], TaskStatus.CLAIMED)
            for each in taken:
                self.model.release(*each.key)

    @precondition(lambda self: self.held_claims())
    @rule(which=some_picks)
    def beat(self, which: list[Pick]) -> None:
        """A worker sends heartbeats for the tasks that it holds."""
        for worker, _ in self.by_worker(which):
            store = self.store_of(worker)
            store.heartbeat(is_quiet=False, is_holding=True)
            held = {key: row for key, row in self.model.rows.items() if row.worker == worker}
            for key, row in held.items():
                self.model.beat(key, row.claim, "RUNNING")
                self.model.beat(key, row.claim, "CLAIMED")
            running = {(key, row.claim) for key, row in held.items() if row.status == "RUNNING"}
            assert store.running_claims() == running

    @precondition(lambda self: self.held_claims())
    @rule(place=places, knows=st.lists(picks, max_size=1))
    def hand_back_unknown(self, place: int, knows: list[Pick]) -> None:
        """A worker does not know whether its last commit succeeded."""
        worker = self.holders()[place % len(self.holders())]
        known = [each.claim for name, taken in self.by_worker(knows) if name == worker for each in taken]
        store = self.store_of(worker)
        with store.transaction():
            store.hand_back_unknown(known)
        self.model.hand_back_unknown(worker, {(claim.task_id, claim.claim) for claim in known})
