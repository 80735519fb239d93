"""The supervisor: starts runners, replaces those that die, and recovers what they ran, at once.

No work passes through it. It knows of a death because it is the parent; heartbeats are for the case that it died too.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from django.conf import settings
from django.core.cache import caches
from django.db import Error, connections

from ..bell import LONGEST_WAIT, Mailbox
from ..framework import own_logging
from ..models import Task, Worker
from ..reaper.crashed import Overrun, recover_all
from ..reaper.loop import Reaper
from ..schedules.beat import Beat
from .begun import Begun, HasBegun, new_memory
from .child import DISMISSED, DONE, ELSEWHERE, SPENT, STUCK
from .connection import own_connection
from .inbox import Word
from .nursery import Forked, Nursery
from .plan import Plan, Until

logger = logging.getLogger("horsies_django.worker")

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0

#: Seconds that a runner gets beyond its shutdown timeout, to write what it has to.
GRACE: Final = 5.0

#: Times that the tasks of a dead runner are looked for, a second apart, if somebody else has them locked.
TRIES: Final = 10

#: Failed starts in a row after which a worker that is to end by itself gives up.
HOPELESS: Final = 5


@dataclass(slots=True)
class _Dead:
    worker_id: str
    overrun: Overrun | None
    has_begun: HasBegun
    tries: int = 0


@dataclass(frozen=True, slots=True)
class _Retiring:
    child: _Child


@dataclass(slots=True)
class _Child:
    worker_id: str
    process: subprocess.Popen[str] | Forked
    begun: Begun
    is_replaced: bool = False

    def tell(self, word: Word) -> None:
        """Say a word to the runner; one that is gone needs none."""
        with suppress(OSError, ValueError):
            assert self.process.stdin is not None
            self.process.stdin.write(f"{word.name}\n")
            self.process.stdin.flush()


class Supervisor:
    """Keeps ``plan.processes`` runners alive until told to stop, or until they have done their work."""

    def __init__(self, plan: Plan, verbosity: int = 1) -> None:
        self._plan = plan
        self._verbosity = verbosity
        self._events: Mailbox[_Child | _Retiring | Word] = Mailbox()
        self._children: list[_Child] = []
        self._dead: list[_Dead] = []
        self._has_failed = False
        self._stopping = False
        self._kill_at = float("inf")
        self._start_at: list[float] = []
        self._failed_starts = 0
        self._nursery: Nursery | None = None

    def tell(self, word: Word) -> None:
        """Stop (first time) or abort (second time); may be called from a signal handler."""
        self._events.put(word)

    def run(self) -> int:
        """Supervise until the last runner is gone and return the exit status."""
        if not self._can_spawn():
            raise RuntimeError("Runners are processes of their own: they need DJANGO_SETTINGS_MODULE.")
        if self._plan.fork:
            connections.close_all()
            caches.close_all()
            self._nursery = Nursery.open()
        loops: dict[str, Reaper | Beat] = {}
        if self._plan.reaper:
            loops["reaper"] = Reaper(self._plan.options, self._plan.backend)
        if self._plan.scheduler and self._plan.until is Until.STOPPED:
            loops["scheduler"] = Beat(self._plan.options, self._plan.backend)
        for given in loops.items():
            threading.Thread(target=self._go_round, args=given, name=f"horsies-{given[0]}", daemon=True).start()
        self._start_at = [time.monotonic()] * self._plan.processes
        with own_logging(), own_connection(self._plan.database, "supervisor"):
            while self._children or self._start_at or self._dead:
                self.run_once()
        for loop in loops.values():
            loop.stop()
        if self._nursery is not None:
            self._nursery.close()
        return 1 if self._has_failed or self._is_hopeless() else 0

    def run_once(self) -> None:
        """Start what is to start, wait for the next event, and act on it."""
        while self._start_at and self._start_at[0] <= time.monotonic():
            self._start_at.pop(0)
            self._spawn()
        for event in self._events.take(self._wait()):
            self._act(event)
        if time.monotonic() >= self._kill_at:
            for child in self._children:
                logger.error("runner %s did not stop in time: killed", child.worker_id)
                child.process.kill()
            self._kill_at = float("inf")
        self._recover()

    def _act(self, event: _Child | _Retiring | Word) -> None:
        if isinstance(event, _Child):
            self._bury(event)
        elif isinstance(event, Word):
            self._halt(event)
        elif not self._stopping and event.child in self._children:
            logger.warning("runner retires id=%s: a fresh one starts beside it", event.child.worker_id)
            event.child.is_replaced = True
            self._start_after(0.0)

    def _wait(self) -> float:
        moments = [*self._start_at[:1], self._kill_at, *([time.monotonic() + 1.0] if self._dead else [])]
        return max(0.0, min(min(moments) - time.monotonic(), LONGEST_WAIT))

    def _can_spawn(self) -> bool:
        return bool(getattr(settings, "SETTINGS_MODULE", None))

    def _spawn(self) -> None:
        worker_id = self._plan.new_worker_id()
        opened: list[int] = []
        try:
            reading, writing = os.pipe()
            opened += (reading, writing)
            memory = new_memory()
            opened.append(memory)
            begun = Begun(memory)
            process = self._fork((writing, memory)) or self._exec((writing, memory))
            opened.remove(reading)
        except OSError as error:  # no more processes, or memory, for now: the runners that there are go on
            logger.error("a runner can't be started: %s", error)
            self._failed_starts += 1
            self._start_after(_pause(max(self._failed_starts, 2)))
            return
        finally:
            for descriptor in opened:
                os.close(descriptor)
        child = _Child(worker_id, process, begun)
        self._children.append(child)
        for target, given in ((self._watch, child), (self._listen, (child, reading))):
            threading.Thread(target=target, args=(given,), daemon=True).start()
        with suppress(OSError):
            assert process.stdin is not None
            process.stdin.write(f"{worker_id} {self._verbosity} {writing} {memory} {self._plan.dumps()}\n")
            process.stdin.flush()

    def _fork(self, descriptors: Sequence[int]) -> Forked | None:
        """Fork a runner, if there is a nursery that does. Raises OSError."""
        if self._nursery is None:
            return None
        listening, speaking = os.pipe()
        try:
            pid = self._nursery.bear((listening, *descriptors))
        except OSError:
            os.close(speaking)
            raise
        finally:
            os.close(listening)
        if pid is not None:
            return Forked(pid, speaking)
        os.close(speaking)  # whoever was born after all finds that nobody speaks
        logger.warning("the nursery is lost: runners are started from scratch")
        self._nursery.close()
        self._nursery = None
        return None

    def _exec(self, descriptors: Sequence[int]) -> subprocess.Popen[str]:
        """Start a runner from scratch. Raises OSError."""
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE,
            "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
        }
        return subprocess.Popen(  # our own interpreter, our own module
            [sys.executable, "-m", "horsies_django.worker.child"],
            stdin=subprocess.PIPE,
            env=environment,
            text=True,
            pass_fds=descriptors,
        )

    def _watch(self, child: _Child) -> None:
        child.process.wait()
        self._events.put(child)

    def _listen(self, given: tuple[_Child, int]) -> None:
        child, reading = given
        with os.fdopen(reading, "rb") as pipe:
            for _ in pipe:
                self._events.put(_Retiring(child))

    def _bury(self, child: _Child) -> None:
        """A runner has ended: recover what it held, and replace it unless its work is done."""
        status = child.process.returncode
        assert status is not None
        self._children.remove(child)
        if child.process.stdin:
            with suppress(OSError):
                child.process.stdin.close()
        # Also of one that left in order: it may not have got everything said.
        overrun = Overrun(self._plan.task_timeout) if status == STUCK else None
        self._dead.append(_Dead(child.worker_id, overrun, child.begun.read()))
        child.begun.close()
        if status == DISMISSED:
            self._let_go(child)
            return
        if status == ELSEWHERE:  # another one would find the same
            self._has_failed = True
            self._halt(Word.STOP)
            return
        if status in (DONE, SPENT, STUCK):
            self._failed_starts = 0
            goes_on = status != DONE or self._plan.until is Until.STOPPED
            if goes_on and not self._stopping and not child.is_replaced:
                self._start_after(0.0)
            return
        logger.error("runner died id=%s %s", child.worker_id, _describe(status))
        if self._was_dismissed(child):
            self._let_go(child)
            return
        self._failed_starts = 0 if self._had_started(child) else self._failed_starts + 1
        if self._stopping or self._is_hopeless() or child.is_replaced:
            return
        # The first replacement comes at once: one crash is an accident, a row of them is not.
        self._start_after(_pause(self._failed_starts))

    def _let_go(self, child: _Child) -> None:
        """A runner has gone for an operator asked it to: nobody takes its place."""
        left = len(self._children) + len(self._start_at)
        end = "" if left else ", and with the last one the worker ends"
        logger.info(
            "runner stopped on request id=%s: it is not replaced, runners left=%d%s", child.worker_id, left, end
        )

    def _was_dismissed(self, child: _Child) -> bool:
        """Whether a dead runner had been asked to go, and so is not to be replaced."""
        row = Worker.objects.using(self._plan.database).filter(pk=child.worker_id, stop_requested_at__isnull=False)
        try:
            return row.exists()
        except Error:
            connections[self._plan.database].close()
            return False

    def _start_after(self, pause: float) -> None:
        self._start_at = sorted([*self._start_at, time.monotonic() + pause])

    def _had_started(self, child: _Child) -> bool:
        """Whether a dead runner ever came to work. One that a task's body killed did: that is no failed start."""
        try:
            return Worker.objects.using(self._plan.database).filter(pk=child.worker_id).exists()
        except Error:
            connections[self._plan.database].close()
            return False  # a pause can't hurt while the database is not to be had

    def _is_hopeless(self) -> bool:
        return self._plan.until is not Until.STOPPED and self._failed_starts >= HOPELESS

    def _halt(self, word: Word) -> None:
        word = Word.ABORT if self._stopping else word
        self._stopping = True
        self._start_at.clear()
        grace = GRACE if word is Word.ABORT else self._plan.shutdown_timeout + GRACE
        self._kill_at = time.monotonic() + grace
        for child in self._children:
            child.tell(word)

    def _recover(self) -> None:
        """Put back, or fail, what dead runners held; what can't be written now is tried again."""
        try:
            while self._dead and self._is_recovered(self._dead[0]):
                self._dead.pop(0)
        except Error as error:
            logger.warning("tasks of dead runners can't be recovered yet: %s", error)
            connections[self._plan.database].close()
            if self._stopping and not self._children:
                self._dead.clear()  # the thresholds of whoever reaps next will find them

    def _is_recovered(self, dead: _Dead) -> bool:
        """Recover what a dead runner held; return whether nothing is left to do for it."""
        rows = Task.objects.using(self._plan.database).held_by(dead.worker_id)
        if count := recover_all(rows, dead.overrun, dead.has_begun):
            logger.warning("recovered %d tasks of dead runner id=%s", count, dead.worker_id)
        dead.tries += 1
        if rows.exists() and dead.tries < TRIES:
            return False  # somebody else has them locked
        Worker.objects.using(self._plan.database).leave(dead.worker_id)
        return True

    def _go_round(self, name: str, loop: Reaper | Beat) -> None:
        try:
            with own_connection(self._plan.database, name, waits=True):
                loop.run()
        except BaseException:
            # A worker that does not reap looks well and is not: whoever started it has to know.
            logger.exception("the %s has failed: this worker stops", name)
            self._has_failed = True
            self._events.put(Word.STOP)


def _pause(failed_starts: int) -> float:
    return 0.0 if failed_starts < 2 else float(min(_FIRST_PAUSE * 2 ** (failed_starts - 2), _LONGEST_PAUSE))


def _describe(status: int) -> str:
    return f"signal={signal.Signals(-status).name}" if status < 0 else f"status={status}"
