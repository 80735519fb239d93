"""The supervisor: starts runners, replaces those that die or stall, and has their tasks recovered at once.

No work passes through it, and its loop waits only for events: another thread talks to the database, so a stop takes
effect whatever the database does. As the parent it learns of each death; heartbeats are for the case that it has died
too.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Final, NamedTuple

from django.conf import settings

from ..core.sync import MAX_WAIT, Mailbox
from ..enqueue.django_result import own_logging
from ..models.worker import WorkerRequest
from . import state_files
from .background import Background
from .config import Until, WorkerConfig
from .console_logging import LogThread
from .figures import HeartbeatFile, SupervisorFigures, serve_nothing
from .inbox import Command
from .spawner import GROUP_GRACE, Child, Spawner, kill_process_group
from .started_registry import ExitReason, Notice
from .stop_signals import ABORT_TIMEOUT, LEAVE_TIMEOUT, quiet_signals, starting, stop_signals
from .supervisor_store import DeadRunner, SupervisorStore

logger = logging.getLogger("horsies_django.worker")

_FIRST_PAUSE: Final = 0.5
_MAX_PAUSE: Final = 30.0

#: Seconds that a runner has beyond its shutdown timeout to store results; and after a second signal.
GRACE: Final = 5.0
ABORT_GRACE: Final = 0.5

#: Seconds to wait for the database to tell what an operator had asked of a dead runner.
ANSWER_TIMEOUT: Final = 5.0

#: Seconds between two looks for files of dead workers: one may die after the start of this worker.
FIND_DEAD_INTERVAL: Final = 5.0

#: Failed starts in a row after which a worker that drains gives up.
MAX_FAILED_STARTS: Final = 5


_NOTICES: Final = frozenset(map(str, Notice))


class _Start(NamedTuple):
    """When a runner starts, and whether as a quiet one."""

    at: float
    is_quiet: bool


class Supervisor:
    """Keeps ``config.processes`` runners alive until it is stopped or they have done their work.

    ``serve`` is entered while it runs, and may show its figures to others.
    """

    def __init__(
        self,
        config: WorkerConfig,
        verbosity: int = 1,
        serve: Callable[[SupervisorFigures], AbstractContextManager[None]] = serve_nothing,
    ) -> None:
        self._config = config
        self._serve = serve
        self._figures = SupervisorFigures(config)
        #: What the loop does next, as other threads and signal handlers have asked; None only ends its wait.
        self._events: Mailbox[Callable[[], None] | None] = Mailbox()
        self._heartbeat_file = HeartbeatFile(config.heartbeat_file)
        self._spawner = Spawner(config, verbosity)
        self._store = SupervisorStore(config, partial(self._events.put, None))
        self._background = Background(config, partial(self._events.put, self._fail))
        self._children: list[Child] = []
        self._starts: list[_Start] = []
        #: The latest starts of replacements for crashed runners whose rows may have asked them to stop or to be quiet.
        self._unanswered: dict[str, _Start] = {}
        self._failed_starts = 0
        self._has_failed = False
        self._find_dead_at = 0.0
        self._stopping: Command | None = None
        self._kill_at = float("inf")
        self._leave_at = float("inf")

    def run(self, *, owns_process: bool = False) -> int:
        """Supervise until the last runner is gone; return the exit status. Signals stop it, or make it quiet.

        A stop that takes longer than all its steps may take ends the process if it ``owns_process``, and raises
        KeyboardInterrupt otherwise. Raises ImproperlyConfigured if the heartbeat file or the state directory can't be
        used, and what ``serve`` raises.
        """
        if not getattr(settings, "SETTINGS_MODULE", None):
            raise RuntimeError("Runners are separate processes, which need DJANGO_SETTINGS_MODULE.")
        with starting(owns_process=owns_process):
            self._heartbeat_file.prepare()
            if self._config.state_dir:
                state_files.prepare(self._config.state_dir)
            self._spawner.open()
        try:
            # From here on there are sockets and threads, which forked runners must not inherit.
            with (
                stop_signals(lambda: self._events.put(self._stop), *self._stop_timeouts(), owns_process=owns_process),
                quiet_signals(
                    lambda command: self._events.put(partial(self._set_quiet, command)), owns_process=owns_process
                ),
                self._serve(self._figures),
            ):
                return self._run()
        finally:
            self._spawner.close()

    def _stop_timeouts(self) -> tuple[float, float]:
        """Return the seconds that the steps of a stop, and those of a second one, may take."""
        in_order = self._config.shutdown_timeout + GRACE + GROUP_GRACE + LEAVE_TIMEOUT
        return in_order + ABORT_TIMEOUT, ABORT_GRACE + GROUP_GRACE + 2 * ABORT_TIMEOUT

    def _run(self) -> int:
        self._background.start()
        self._store.start()
        self._starts = [_Start(time.monotonic(), self._config.is_quiet)] * self._config.processes
        with own_logging(), LogThread():
            while not self._is_done():
                self.run_once()
            self._background.stop()
            self._spawner.close()
            self._store.close(0.0 if self._store.pending else ABORT_TIMEOUT)
            self._heartbeat_file.remove()
        return 1 if self._has_failed or self._gives_up() else 0

    def run_once(self) -> None:
        """Start runners that are due, wait for the next event, and handle it."""
        self._figures.record_turn()
        self._find_dead()
        while self._starts and self._starts[0].at <= time.monotonic():
            self._spawn(is_quiet=self._starts.pop(0).is_quiet)
        for event in filter(None, self._events.take(self._wait())):
            event()
        for worker_id, start in list(self._unanswered.items()):
            if time.monotonic() >= start.at:
                self._replace_dead(worker_id, WorkerRequest.CONTINUE)
        for child in self._children:
            self._check(child)
        if os.getpid() == 1:
            self._reap_orphans()
        if any(child.is_healthy for child in self._children):
            self._heartbeat_file.beat()
        if time.monotonic() >= self._kill_at:
            self._kill_at = float("inf")
        if self._stopping and not self._children and self._leave_at == float("inf"):
            timeout = LEAVE_TIMEOUT if self._stopping is Command.STOP else ABORT_TIMEOUT
            self._leave_at = time.monotonic() + timeout

    def _is_done(self) -> bool:
        if self._children or self._starts or self._unanswered:
            return False
        if self._store.pending and time.monotonic() < self._leave_at:
            return False
        if self._store.pending:
            logger.warning("tasks left to a reaper runners=%d: the database did not answer", self._store.pending)
        return True

    def _wait(self) -> float:
        moments = [self._kill_at, self._leave_at, *(start.at for start in self._starts[:1])]
        moments += [start.at for start in self._unanswered.values()]
        moments += [child.stall_detector.heartbeat_at for child in self._children]
        return max(0.0, min(min(moments) - time.monotonic(), MAX_WAIT))

    def _check(self, child: Child) -> None:
        """Kill a runner that is stalled or does not stop in time; send a heartbeat for one that does not itself."""
        is_alive = child.process.returncode is None  # otherwise its process group is being killed
        if is_alive and time.monotonic() >= self._kill_at:
            child.kill("it did not stop in time")
        elif is_alive and (reason := child.stall_detector.check()):
            child.kill(reason)
        elif child.stall_detector.is_heartbeat_due():
            self._store.heartbeat(child.worker_id, child.process.pid)
        stalled_at = child.stall_detector.stalled_at
        if child.is_stalled != (stalled_at is not None):
            child.is_stalled = not child.is_stalled
            self._store.record_stall(child.worker_id, stalled_at)

    def _reap_orphans(self) -> None:
        """Reap what bodies have left behind and process 1 of a container adopts.

        Other code waits for the runners, and for processes of this group, to which none of theirs belongs. Such a
        process hides later orphans until it is waited for; a fork server that has died, until the next runner starts.
        """
        runners = {child.process.pid for child in self._children}
        # kill_process_group() may reap the same process between two of these steps.
        with suppress(ChildProcessError, ProcessLookupError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in runners or os.getpgid(ended.si_pid) == os.getpgrp():
                    return
                os.waitpid(ended.si_pid, 0)

    def _on_retiring(self, child: Child, exit_reason: ExitReason) -> None:
        if child in self._children:
            child.is_retiring = True
            self._start_replacement(child, is_urgent=exit_reason is ExitReason.STUCK)

    def _start_replacement(self, child: Child, *, is_urgent: bool) -> None:
        """Start a fresh runner beside one that takes no more work.

        At most ``processes`` runners that only wait for long executions get one, or each long execution would end up
        with a process of its own.
        """
        has_room = len(self._children) + len(self._starts) < 2 * self._config.processes
        if not self._stopping and not child.is_replaced and (is_urgent or has_room):
            logger.warning("runner retires id=%s: its replacement starts", child.worker_id)
            child.is_replaced = True
            self._start_after(0.0, is_quiet=child.started_registry.is_quiet)

    def _spawn(self, *, is_quiet: bool) -> None:
        try:
            child = self._spawner.start(is_quiet=is_quiet)
        except OSError as error:  # no more processes or memory for now: the existing runners go on
            logger.error("runner not started error=%s", error)
            self._failed_starts += 1
            self._start_after(_pause(max(self._failed_starts, 2)), is_quiet=is_quiet)
            return
        self._children.append(child)
        self._figures.add(child)
        for target in (self._wait_for_exit, self._read_reports):
            threading.Thread(target=target, args=(child,), daemon=True).start()

    def _wait_for_exit(self, child: Child) -> None:
        child.process.wait()
        kill_process_group(child.process.pid)  # it may still work on the tasks that are given away next
        self._events.put(partial(self._on_exit, child))

    def _read_reports(self, child: Child) -> None:
        with os.fdopen(child.report_pipe) as pipe:
            for line in map(str.strip, pipe):
                if line in _NOTICES:
                    self._background.on_notice(Notice(line))
                else:
                    self._events.put(partial(self._on_retiring, child, ExitReason(line)))

    def _on_exit(self, child: Child) -> None:
        """Have the tasks of a runner that has ended recovered, and replace it unless its work is done."""
        status = child.process.returncode
        assert status is not None
        self._children.remove(child)
        if child.process.stdin:
            with suppress(OSError):
                child.process.stdin.close()
        exit_reason, has_started = child.started_registry.exit_reason, child.started_registry.is_registered
        is_quiet = child.started_registry.is_quiet
        # A crash exceeds no time limit. If the process had to end for its executions, those over their limits are at
        # fault.
        is_deliberate = exit_reason is not None or child.is_killed
        is_stopped = is_deliberate and self._stopping is not None
        evidence = child.started_registry.evidence(time.monotonic() if is_deliberate else None, is_stopped=is_stopped)
        dead = DeadRunner(child.worker_id, evidence, partial(self._forget, child))
        self._figures.remove(child)
        if exit_reason is None:
            logger.error("runner died id=%s %s", child.worker_id, _describe(status))
            if not self._stopping and not child.is_replaced:
                self._failed_starts = 0 if has_started else self._failed_starts + 1
                dead.on_request_known = lambda request: self._events.put(
                    partial(self._replace_dead, child.worker_id, request)
                )
                self._unanswered[child.worker_id] = _Start(time.monotonic() + ANSWER_TIMEOUT, is_quiet)
        elif exit_reason is ExitReason.STOP_REQUESTED:
            self._log_not_replaced(child.worker_id)
        elif exit_reason in (ExitReason.WRONG_DATABASE, ExitReason.FORBIDDEN):  # another one would fail in the same way
            self._fail()
        else:
            self._failed_starts = 0
            goes_on = exit_reason is not ExitReason.DONE or self._config.until is Until.STOPPED
            if goes_on and not self._stopping and not child.is_replaced:
                self._start_after(0.0, is_quiet=is_quiet)
        self._store.recover(dead)  # even after an exit in order: some results may not be stored
        for other in self._children:
            if other.is_retiring:
                self._start_replacement(other, is_urgent=False)

    def _find_dead(self) -> None:
        """Have the tasks of workers of which no process lives any more recovered by their files, every few seconds."""
        if not self._config.state_dir or self._stopping or time.monotonic() < self._find_dead_at:
            return
        self._find_dead_at = time.monotonic() + FIND_DEAD_INTERVAL
        for state in state_files.find_dead(self._config.state_dir):
            self._store.recover(DeadRunner(state.worker_id, state.evidence, state.forget))

    def _forget(self, child: Child) -> None:
        """Delete the file of a runner whose tasks are recovered, and release its lock."""
        if self._config.state_dir:
            state_files.remove(self._config.state_dir, child.worker_id)
        child.started_registry.close()

    def _replace_dead(self, worker_id: str, request: WorkerRequest) -> None:
        """Replace a runner that has crashed, unless its row had asked it to stop; a quiet one by a quiet one."""
        start = self._unanswered.pop(worker_id, None)
        if start is None or self._stopping:
            return
        if request is WorkerRequest.STOP:
            self._log_not_replaced(worker_id)
        elif not self._gives_up():
            # The first replacement starts at once: one crash is an accident, several in a row are not.
            if pause := _pause(self._failed_starts):
                logger.warning("runner restart delayed failed_starts=%d seconds=%.1f", self._failed_starts, pause)
            self._start_after(pause, is_quiet=start.is_quiet or request is WorkerRequest.QUIET)

    def _log_not_replaced(self, worker_id: str) -> None:
        """Log that a runner which stopped on request gets no replacement."""
        left = len(self._children) + len(self._starts)
        end = "" if left else ", and with the last one the worker ends"
        logger.info("runner stopped on request id=%s runners_left=%d: not replaced%s", worker_id, left, end)

    def _start_after(self, pause: float, *, is_quiet: bool) -> None:
        self._starts = sorted([*self._starts, _Start(time.monotonic() + pause, is_quiet)])

    def _gives_up(self) -> bool:
        return self._config.until is not Until.STOPPED and self._failed_starts >= MAX_FAILED_STARTS

    def _set_quiet(self, command: Command) -> None:
        """Have all runners claim nothing more, or claim again, and those that start later too."""
        if self._stopping:
            return
        is_quiet = command is Command.QUIET
        logger.info("worker %s by signal runners=%d", "quiet" if is_quiet else "resumed", len(self._children))
        self._starts = [start._replace(is_quiet=is_quiet) for start in self._starts]
        self._unanswered = {key: start._replace(is_quiet=is_quiet) for key, start in self._unanswered.items()}
        for child in self._children:
            child.send_quiet(is_quiet=is_quiet)

    def _stop(self) -> None:
        """Stop in order; the second time, at once."""
        if self._stopping is Command.ABORT:
            return  # it ends soon, and further signals must not delay that
        command = Command.ABORT if self._stopping else Command.STOP
        self._stopping = command
        self._figures.record_stop()
        self._starts.clear()
        self._unanswered.clear()
        grace = ABORT_GRACE if command is Command.ABORT else self._config.shutdown_timeout + GRACE
        self._kill_at = time.monotonic() + grace
        self._leave_at = float("inf")  # counts from the end of the last runner
        for child in self._children:
            child.send(command)

    def _fail(self) -> None:
        """Stop, and exit with status 1."""
        if not self._has_failed:  # a second stop would abort the executions
            self._has_failed = True
            self._stop()


def _pause(failed_starts: int) -> float:
    return 0.0 if failed_starts < 2 else float(min(_FIRST_PAUSE * 2 ** (failed_starts - 2), _MAX_PAUSE))


def _describe(status: int) -> str:
    if not status:  # 0 also stands for a process that a handler of SIGCHLD of the project has reaped
        return "status=0 or unknown"
    return f"signal={signal.Signals(-status).name}" if status < 0 else f"status={status}"
