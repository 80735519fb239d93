"""The pump: the loop of a runner.

A tick stores what has ended, beats, starts what was prefetched and claims for the free slots, in one transaction.
Mostly there is but to exchange successes for new claims, which is one statement where the database can. What ends
during a tick waits for the next one, so batches are as large as the load is high, and no timer is to be tuned.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from django.db import Error

from ..core import recent_exceptions
from ..core.exceptions import TaskRevoked
from ..core.sync import LONGEST_WAIT
from ..db.errors import lacks_privilege
from ..db.notifications import ANY_QUEUE, Freed, Wake, free_after_commit
from ..enqueue.send_signals import handing_over
from ..models.check_migrated import MissingPrivilege, raise_if_forbidden
from ..models.claims import ClaimedTask, Runner
from . import console
from .claim_budget import Allowance
from .commands import Inbox, Item, Word
from .config import Plan, Until
from .connection import is_callers_alone
from .database_retry import Patience
from .execution import Run
from .execution_result import Outcome, Unbegun
from .exit_reason import Leaving
from .hints import SOON
from .limit_releaser import Gates
from .listener import Listener
from .poll_interval import Cadence
from .queue_poller import Lookout
from .result_buffer import Outbox
from .signal_dispatcher import Announcer
from .slots import Lane
from .started_registry import Begun
from .stopping import stop_bodies
from .store import Books
from .tick import Tick
from .tick_transaction import Writer
from .watchdog import Watch

logger = logging.getLogger("horsies_django.worker")

#: Seconds from the beginning of a tick for which what it has claimed is surely still this worker's.
SURE: Final = 0.5

#: Seconds between two ticks at least, while the slots have enough to do.
GATHERING: Final = 0.002

#: Seconds until the next try to hand back tasks whose workflow somebody has locked.
HELD_UP: Final = 0.05

#: Seconds between two looks at the worker's own row, however often somebody says that it asks the worker to stop.
ASKS_EVERY: Final = 0.5

#: Seconds for which a body runs until its node is shown as running.
SHOWN_AFTER: Final = 0.02


class Pump:
    """Keeps the slots of one runner busy until it is told to stop or, by its plan, has done its work."""

    def __init__(
        self,
        plan: Plan,
        runner: Runner,
        inbox: Inbox,
        lanes: Sequence[Lane],
        listener: Listener,
        retire: Callable[[Leaving], bool],
        begun: Begun | None,
    ) -> None:
        self._plan = plan
        self._runner = runner
        self._inbox = inbox
        self._lanes = lanes
        self._listener = listener
        self._watch = Watch(plan, lanes)
        self._retire = retire
        self._begun = begun
        self._books = Books(plan, runner)
        self._announcer = Announcer(
            plan.database,
            has_thread=not is_callers_alone(plan.database),
            on_sent=partial(inbox.put, Word.LOOK) if plan.until is Until.DRAINED else None,
        )
        self._announced = 0
        self._cadence = Cadence(plan.poll_interval)
        self._outbox = Outbox()
        self._allowance = Allowance(plan, lanes, self._watch)
        self._writer = Writer(plan, self._books, lanes, self._outbox, self._allowance)
        self._gates = Gates(plan, self._books, lanes, self._allowance, self._cadence.due_at)
        self._lookout = Lookout(plan, self._books, lanes, self._allowance, listener, self._cadence, self._gates)
        self._try = Patience(
            plan.database,
            wait=lambda seconds: self._hear(inbox.take(seconds)),
            doubt=self._writer.doubt,
            longest_pause=plan.options.recovery.beat_interval,
            isolate=lambda: self._books.isolate(lanes),
            forbidden=self._forbid,
        )
        self._next_beat = time.monotonic() + plan.options.recovery.beat_interval
        self._ticked_at = float("-inf")
        self._hands_back_at = 0.0
        self._asks_at = float("inf")
        self._asked_at = float("-inf")
        self._unshown: list[Run] = []
        self._done = False
        self._is_aborted = False
        #: Whether bodies run on, or could not be stored: their tasks are put back once the process has ended.
        self.leaves_bodies = False

    def run(self) -> Leaving:
        """Register, work until done, hand back what was not begun, and leave; return why."""
        with handing_over(self._announcer.put):
            return self._run()

    def _run(self) -> Leaving:
        while not self._try(self._books.register) and self._allowance.stop_by is None:
            pass  # each try waits
        if self._begun is not None:
            self._begun.registered()
        while not self._done:
            self.run_once()
        # Where there is a supervisor, it recovers what is left: after the end of this process, and so of the bodies.
        self.leaves_bodies = self._is_holding and self._begun is not None
        if self.leaves_bodies:
            self._try(self._hand_back_unbegun)
            logger.warning("worker leaves tasks to its supervisor id=%s", self._runner.worker_id)
        elif self._is_holding:
            self._give_up()
        self._announcer.close(timeout=5.0)
        if not self.leaves_bodies:
            self._try(self._books.leave)
        return self._allowance.leaving

    @property
    def _is_holding(self) -> bool:
        is_busy = any(lane.running or lane.prefetched or lane.withdrawn for lane in self._lanes)
        return self._writer.in_doubt or bool(self._outbox) or is_busy

    def run_once(self) -> int:
        """Wait for something to do and do it; return how many tasks were claimed or stored."""
        was_busy = any(lane.hot for lane in self._lanes)
        self._hear(self._inbox.take(self._wait()))
        self._mind()
        if time.monotonic() >= self._outbox.unblock_at:
            self._outbox.unblock()
        if time.monotonic() >= self._asks_at:
            self._try(self._ask)
        if self._lookout.is_due_first(was_busy=was_busy):
            self._try(self._look)
        if time.monotonic() >= self._outbox.look_at:
            self._try(self._admit)
        if time.monotonic() >= self._shows_at:
            self._try(self._show)
        tick = self._try(self._tick) if self._has_work() and time.monotonic() >= self._gathers_until() else None
        if tick is not None:
            self._carry_out(tick)
        if self._gates.is_due:
            self._try(self._gates.open)
        if self._lookout.is_due:
            self._try(self._look)
        console.flush()
        self._announcer.send()
        self._done = self._is_done() or self._allowance.is_over
        return tick.claimed + len(tick.stored) if tick else 0

    def stop(self) -> None:
        """Claim no more; wait for the bodies that run, for the plan's ``shutdown_timeout`` at most."""
        if self._allowance.stop_by is None:
            running = sum(len(lane.running) for lane in self._lanes)
            logger.info("worker stopping id=%s running=%d", self._runner.worker_id, running)
            self._allowance.stop_by = time.monotonic() + self._plan.shutdown_timeout
            for lane in self._lanes:
                self._withdraw(lane)

    def dismiss(self) -> None:
        """Claim no more; wait for the bodies that run, as long as they take; then leave for good."""
        if self._allowance.stop_by is None and self._allowance.retired is None:
            running = sum(len(lane.running) for lane in self._lanes)
            logger.info("worker asked to stop id=%s running=%d", self._runner.worker_id, running)
            self._allowance.retired = Leaving.DISMISSED
            for lane in self._lanes:
                self._withdraw(lane)

    def _forbid(self, error: Error) -> None:
        """Stop, for the role has lost a privilege: no other try would go better. Says so once."""
        if self._allowance.retired is Leaving.FORBIDDEN:
            return
        try:
            raise_if_forbidden(self._plan.database, error)
        except MissingPrivilege as problem:
            logger.error("worker stops id=%s: %s", self._runner.worker_id, problem)
        self._allowance.retired = Leaving.FORBIDDEN
        self.stop()

    # What to do, and when.

    def _has_work(self) -> bool:
        may = self._allowance.may_claim
        starts = any(lane.startable for lane in self._lanes)
        claims = may and any(lane.hot and lane.room for lane in self._lanes)
        hands_back = self._hands_back and time.monotonic() >= self._hands_back_at
        to_say = self._writer.in_doubt or self._outbox.is_ready or hands_back
        return to_say or starts or claims or time.monotonic() >= self._next_beat

    @property
    def _hands_back(self) -> bool:
        may = self._allowance.may_claim
        return any(lane.withdrawn or (lane.prefetched and not may) for lane in self._lanes)

    def _gathers_until(self) -> float:
        """Until when to let ends come together: no slot waits for a tick as long as there is something ahead of it."""
        is_fed = any(lane.is_fed for lane in self._lanes) and self._allowance.stop_by is None
        return self._ticked_at + GATHERING if is_fed else 0.0

    def _wait(self) -> float:
        if self._has_work() or self._lookout.is_due:
            return max(0.0, self._gathers_until() - time.monotonic())
        moments = [
            self._next_beat,
            self._asks_at,
            self._watch.next,
            self._outbox.next,
            self._shows_at,
            self._gates.next,
            time.monotonic() + LONGEST_WAIT,
        ]
        if self._hands_back:
            moments.append(self._hands_back_at)
        if self._allowance.stop_by is not None:
            moments.append(self._allowance.stop_by)
        moments += [lane.gives_back_at for lane in self._lanes]
        if self._allowance.has_room():
            moments.append(self._cadence.next_look)
        return max(0.0, min(moments) - time.monotonic())

    def _is_done(self) -> bool:
        if self._allowance.retired and not self._outbox and not self._hands_back and not self._watch.hopeful():
            return True
        if self._is_holding or self._gates:
            return False
        is_stopping = self._allowance.stop_by is not None
        if self._plan.until is Until.DRAINED and not is_stopping and self._is_announcing():
            return False
        if not self._allowance.may_claim:
            return True
        is_waiting = self._plan.until is Until.DRAINED and self._lookout.is_held_back
        looked_in_vain = not self._lookout.is_asked and not is_waiting and not any(lane.hot for lane in self._lanes)
        return self._plan.until is not Until.STOPPED and looked_in_vain

    def _is_announcing(self) -> bool:
        """Whether receivers of signals still run. If any has run since the last look, another is asked for."""
        sent = self._announcer.sent  # read once, for the thread counts on
        if sent != self._announced:
            self._announced, self._lookout.is_asked = sent, True
        return sent != self._announcer.taken

    def _hear(self, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, Outcome):
                self._has_ended(item)
            elif isinstance(item, Unbegun):
                self._came_too_late(item.run)
            elif isinstance(item, Freed):
                self._freed(item.queue_name)
            elif isinstance(item, Wake):
                self._wake(item)
                self._cadence.stirred()
            else:
                self._obey(item)

    def _obey(self, word: Word) -> None:
        if word is Word.LOOK:
            self._lookout.is_asked = True
            self._cadence.stirred()
        elif word is Word.REVOKED:
            self._watch.hurry()
        elif word is Word.PING:
            self._try(self._books.ping)
        elif word is Word.SOON:
            self._cadence.due_at(time.monotonic() + SOON)
        elif word is Word.DISMISS:
            self._asks_at = max(time.monotonic(), self._asked_at + ASKS_EVERY)
        else:
            self.stop()
            if word is Word.ABORT:
                self._is_aborted, self._allowance.stop_by = True, 0.0

    def _has_ended(self, outcome: Outcome) -> None:
        for lane in self._lanes:
            if lane.forget(outcome.run) and outcome.run.has_begun:
                lane.ahead.learn(outcome.run.began - outcome.run.submitted, outcome.duration)
        self._freed(outcome.claim.queue_name)
        self._outbox.put(outcome)

    def _came_too_late(self, run: Run) -> None:
        if not any(lane.take_back(run) for lane in self._lanes):
            return
        self._give_place_back(run)
        if run.told is None:
            values = run.task_id, run.claim.task_name, run.claim.queue_name
            logger.warning("task could not begin in time id=%s name=%s queue=%s: it goes back", *values)

    def _freed(self, queue_name: str) -> None:
        """Ask for a place in a queue that had none."""
        kinds = self._books.shares.lift(queue_name)
        for lane in self._lanes:
            if lane.is_async in kinds:
                lane.heat(queue_name)

    def _wake(self, wake: Wake) -> None:
        if wake.queue_name == ANY_QUEUE:
            self._books.ease()
            self._lookout.is_asked = True
            return
        for lane in self._lanes:
            if wake.is_async in (None, lane.is_async):
                lane.heat(wake.queue_name)

    # Doing it.

    def _mind(self) -> None:
        """Mind the bodies that run: their time limits, and whether their tasks are still this worker's."""
        for lane in self._lanes:
            if time.monotonic() >= lane.gives_back_at:
                lane.ahead.forget()
                self._withdraw(lane)
        if self._watch.is_due() and self._watch.stop_bodies() and self._allowance.retired is None:
            self._allowance.retired = Leaving.STUCK if self._retire(Leaving.STUCK) else Leaving.SPENT
        if self._allowance.wants_relief() and self._retire(Leaving.SPENT):
            self._allowance.retired = Leaving.SPENT
        if self._watch.wants_check():
            self._try(self._check)

    def _withdraw(self, lane: Lane) -> None:
        """Take back what has been started and has not begun."""
        for run in lane.withdraw():
            self._give_place_back(run)

    def _give_place_back(self, run: Run) -> None:
        if self._begun is not None:
            self._begun.give_back(run.place)

    def _check(self) -> bool:
        runs = [run for lane in self._lanes for run in lane.running.values()]
        for run, note in self._books.note_progress(runs).items():
            run.noted = note
        self._watch.checked(runs, self._books.still_mine([run.claim for run in runs]))
        return True

    def _admit(self) -> bool:
        """Store the ends of bodies that had saved their state once nothing holds their rows: nobody here may wait."""
        self._outbox.admit(self._books.locked([outcome.claim for outcome in self._outbox.late]))
        return True

    @property
    def _shows_at(self) -> float:
        return self._unshown[0].submitted + SHOWN_AFTER if self._unshown else float("inf")

    def _show(self) -> bool:
        """Show that nodes run whose bodies take long enough to be seen."""
        running = {run for lane in self._lanes for run in lane.running.values()}
        running -= {outcome.run for outcome in self._outbox.all}
        self._books.run_nodes([run.claim for run in self._unshown if run in running])
        self._unshown.clear()
        return True

    def _ask(self) -> bool:
        """Ask the worker's own row whether it is to stop: it was told that, perhaps by somebody who must not say so."""
        self._asks_at, self._asked_at = float("inf"), time.monotonic()
        if self._books.is_asked_to_stop():
            self.dismiss()
        return True

    def _look(self) -> bool:
        if self._lookout.look().is_dismissed:
            self.dismiss()
        return True

    def _tick(self) -> Tick:
        if not self._is_holding and not any(lane.hot for lane in self._lanes):
            return self._writer.beat()
        return self._writer.write(is_beat_due=time.monotonic() >= self._next_beat)

    def _carry_out(self, tick: Tick) -> None:
        """Do in memory what has been committed: forget, begin, tell."""
        self._ticked_at = time.monotonic()
        ended = tick.stored
        self._outbox.take(ended)
        self._outbox.block(tick.blocked)
        if tick.beat:
            # A beat that had to wait is as old as the tick is long.
            self._next_beat = tick.began + self._plan.options.recovery.beat_interval
            if self._begun is not None:
                self._begun.beaten()
        self._settle(tick)
        self._gates.put([*(outcome.claim.limit_key for outcome in ended), *tick.limit_keys])
        self._lookout.is_asked = self._lookout.is_asked or tick.doubted  # what was handed back can be claimed anew
        if tick.stored or tick.claimed or tick.handed_back:
            # Who is to leave once nothing is due has to look after the last thing that it did.
            self._lookout.is_asked = self._lookout.is_asked or self._plan.until is Until.DRAINED
        if tick.claimed:
            self._allowance.claimed += tick.claimed
            self._cadence.found()
        for lane, started in tick.started:
            self._writer.pass_turn(lane, len(started), is_cooled=lane in tick.cooled)
            lane.ahead.adapt()
            if lane.is_partial:
                lane.learn(started)
            runs = list(map(self._begin, self._confirmed(started, tick)))
            lane.submit(runs)
            self._unshown += [run for run in runs if run.claim.workflow_id is not None]
        self._cadence.due_at(self._books.shares.opens_at)
        self._sweep(ended)
        self._tell(ended)
        if tick.is_dismissed:
            self.dismiss()

    def _settle(self, tick: Tick) -> None:
        for lane in tick.cooled:
            knows_not_all = lane.knows_not_all
            lane.cool()
            self._lookout.is_asked = self._lookout.is_asked or (knows_not_all and not lane.hot)
        for lane, kept in tick.handed_back:
            self._allowance.claimed -= len(lane.withdrawn) - len(kept)
            lane.withdrawn[:] = kept
        for lane, prefetched in tick.prefetched:
            if len(prefetched) > len(lane.prefetched):
                lane.moved_at = time.monotonic()
            lane.prefetched.clear()
            lane.prefetched.extend(prefetched)
        self._hands_back_at = time.monotonic() + HELD_UP if self._hands_back else 0.0

    def _tell(self, ended: Sequence[Outcome]) -> None:
        for outcome in ended:
            self._give_place_back(outcome.run)
            if outcome.ended.again_in is not None:
                self._cadence.due_at(time.monotonic() + outcome.ended.again_in)
            outcome.log()
            if self._begun is None and outcome.is_final and outcome.exception is not None:
                recent_exceptions.keep(outcome.run.task_id, outcome.exception)  # its handle may be in this process
        for queue_name in self._books.shares.scarce({outcome.claim.queue_name for outcome in ended}):
            free_after_commit(self._plan.database, queue_name)
        self._listener.ended(outcome.run.task_id for outcome in ended if outcome.is_final)
        self._announcer.ended(ended)

    def _sweep(self, ended: Sequence[Outcome]) -> None:
        """Delete what is kept for no time at all. Whatever keeps it from going is not to undo its end."""
        try:
            self._books.delete_fleeting(ended)
        except Exception as error:
            if lacks_privilege(error):
                self._forbid(error)
            else:
                logger.exception("tasks that are kept for no time stay for the reaper")

    def _begin(self, claim: ClaimedTask) -> Run:
        time_limit = self._plan.task_timeout if claim.timeout is None else claim.timeout
        place = None if self._begun is None else self._begun.place()
        return Run(claim, self._plan.options, self._runner, time_limit, place=place)

    def _confirmed(self, started: list[ClaimedTask], tick: Tick) -> list[ClaimedTask]:
        """Those that may begin: after a long pause (a stopped process, say) only what is still this worker's."""
        if not started or time.monotonic() - tick.began < SURE:
            return started
        self._next_beat = time.monotonic()  # they are as old in the table as the tick is long
        mine = self._try(lambda: self._books.still_mine(started))
        if mine is None:
            self._writer.doubt()
        return [claim for claim in started if (claim.task_id, claim.claim) in (mine or ())]

    def _give_up(self) -> None:
        """Put back what has not ended, as after a crash. A body that a stop has cut short ends first.

        One that can't be stopped keeps its task: a reaper finds that once the process has ended.
        """
        still: set[Run] = set()
        if self._allowance.stop_by is not None:
            ended, still = stop_bodies(self._lanes, self._inbox, 1.0 if self._is_aborted else self._plan.timeout_grace)
            for outcome in ended:
                is_cut_short = outcome.run.told is TaskRevoked and outcome.ended.error is not None
                if not is_cut_short or outcome.is_stored:
                    self._has_ended(outcome)
            if self._outbox and (tick := self._try(self._tick)) is not None:
                self._carry_out(tick)
        self._try(partial(self._put_back, [run.claim for run in still]))

    def _hand_back_unbegun(self) -> bool:
        """Hand back what has not begun, also where another transaction has locked its workflow: that is no crash."""
        if self._writer.in_doubt or any(lane.withdrawn for lane in self._lanes):
            with self._books.transaction():
                self._books.hand_back_unknown(self._writer.known(), at_last=True)
        return True

    def _put_back(self, still: Sequence[ClaimedTask]) -> bool:
        self._hand_back_unbegun()
        count = self._books.give_up(still, is_stopped=self._allowance.stop_by is not None)
        logger.warning("worker gave up id=%s tasks=%d: put back as if it had crashed", self._runner.worker_id, count)
        return True
