"""The supervisor's access to the database, in a thread of its own: its loop never waits for an answer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from django.db import Error, connections

from ..core.sync import Mailbox
from ..db.connection import own_connection
from ..db.errors import lacks_privilege
from ..enqueue.send_signals import dispatching_to
from ..models import Heartbeat, Task, Worker
from ..models.worker import WorkerRequest
from ..reaper.crashed import Evidence, recover_all
from .config import HOSTNAME, WorkerConfig
from .signal_dispatcher import SignalDispatcher

logger = logging.getLogger("horsies_django.worker")

#: Attempts to recover the tasks of a dead runner while another transaction has them locked.
MAX_TRIES: Final = 10

#: Seconds between two attempts.
RETRY_INTERVAL: Final = 1.0

#: Seconds that the thread waits for jobs.
_IDLE: Final = 60.0


@dataclass(slots=True)
class DeadRunner:
    """A runner that has ended. ``on_request_known`` is called with what its row had asked of it.

    ``forget`` deletes the evidence once the tasks are recovered.
    """

    worker_id: str
    evidence: Evidence
    forget: Callable[[], None]
    on_request_known: Callable[[WorkerRequest], None] | None = None
    tries: int = 0
    next_try: float = 0.0


class SupervisorStore:
    """Recovers the tasks of dead runners, and records the stalled ones and their heartbeats. No method blocks."""

    def __init__(self, config: WorkerConfig, on_recovered: Callable[[], None]) -> None:
        self._config = config
        self._on_recovered = on_recovered
        self._jobs: Mailbox[Callable[[], object] | None] = Mailbox()  # None ends the thread
        self._dead: list[DeadRunner] = []
        self._heartbeats: dict[str, int] = {}  # to send; a server that does not answer delays them
        self._stalls: dict[str, float | None] = {}  # not recorded yet
        self._posted = 0
        self._recovered = 0
        self._thread = threading.Thread(target=self._run, name="horsies-recovery", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def pending(self) -> int:
        """How many dead runners are left to recover."""
        return self._posted - self._recovered

    def recover(self, dead: DeadRunner) -> None:
        """Put back or fail the tasks of a dead runner. A failure is retried."""
        self._posted += 1
        self._jobs.put(partial(self._dead.append, dead))

    def heartbeat(self, worker_id: str, pid: int) -> None:
        """Send a heartbeat for a runner and for all that it holds."""
        self._jobs.put(partial(self._heartbeats.__setitem__, worker_id, pid))

    def record_stall(self, worker_id: str, stalled_at: float | None) -> None:
        """Record since when a runner stands still, in monotonic seconds; None: it goes on. A failure is retried."""
        self._jobs.put(partial(self._stalls.__setitem__, worker_id, stalled_at))

    def close(self, timeout: float) -> None:
        """End the thread after its last job; wait for it at most ``timeout`` seconds."""
        self._jobs.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        dispatcher = SignalDispatcher(self._config.database)  # receivers of signals must not delay a heartbeat
        with dispatching_to(dispatcher.put), own_connection(self._config.database, "supervisor"):
            jobs: list[Callable[[], object] | None] = []
            while None not in jobs:
                jobs = self._jobs.take(RETRY_INTERVAL if self._dead or self._stalls else _IDLE)
                for job in filter(None, jobs):
                    job()
                while self._heartbeats:
                    self._send_heartbeat(*self._heartbeats.popitem())
                self._record_stalls()
                self._recover_all()
        dispatcher.close(timeout=_IDLE)

    def _send_heartbeat(self, worker_id: str, pid: int) -> None:
        database = self._config.database
        held = Task.objects.using(database).held_by(worker_id)
        try:
            Worker.objects.using(database).beat(worker_id)
            Heartbeat.objects.using(database).beat(held, worker_id, HOSTNAME, pid)
        except Error as error:
            logger.warning("runner heartbeat not sent id=%s error=%s", worker_id, error)
            connections[database].close()

    def _record_stalls(self) -> None:
        database = self._config.database
        for worker_id, stalled_at in list(self._stalls.items()):
            seconds = None if stalled_at is None else time.monotonic() - stalled_at
            try:
                if Worker.objects.using(database).record_stalled(worker_id, seconds):
                    del self._stalls[worker_id]
            except Error as error:
                logger.warning("runner stall not recorded id=%s error=%s", worker_id, error)
                connections[database].close()
                return

    def _recover_all(self) -> None:
        began = time.monotonic()
        for dead in list(self._dead):
            if time.monotonic() < dead.next_try:
                continue
            dead.next_try = time.monotonic() + RETRY_INTERVAL
            try:
                if not self._is_recovered(dead):
                    continue
            except Error as error:
                connections[self._config.database].close()
                if lacks_privilege(error):  # no other attempt would succeed
                    logger.error("tasks of dead runner left to a reaper id=%s error=%s", dead.worker_id, error)
                    self._finish(dead)
                    continue
                logger.warning("tasks of dead runners not recovered yet error=%s", error)
                if time.monotonic() - began > RETRY_INTERVAL:
                    return  # heartbeats come first
                continue
            self._finish(dead)

    def _finish(self, dead: DeadRunner) -> None:
        dead.forget()
        self._stalls.pop(dead.worker_id, None)
        self._dead.remove(dead)
        self._recovered += 1
        self._on_recovered()

    def _is_recovered(self, dead: DeadRunner) -> bool:
        """Recover the tasks of a dead runner; return whether nothing is left to do."""
        workers = Worker.objects.using(self._config.database)
        if dead.on_request_known is not None:
            dead.on_request_known(workers.request_of(dead.worker_id))
            dead.on_request_known = None
        rows = Task.objects.using(self._config.database).held_by(dead.worker_id)
        if count := recover_all(rows, dead.evidence):
            logger.warning("tasks of dead runner recovered id=%s count=%d", dead.worker_id, count)
        dead.tries += 1
        if rows.exists() and dead.tries < MAX_TRIES:
            return False  # another transaction has them locked
        workers.deregister(dead.worker_id)
        return True
