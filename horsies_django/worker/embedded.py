"""A worker in threads of a web process: for development, and for a small site on one server.

Of the processes of a host that serve the same database, one works, and the others stand by. The lease in the database
names the process that works, so that the next one recovers its tasks as soon as it is provably dead. One that may only
be stuck loses its lease after :data:`LEASE` seconds, and its tasks to a reaper, as those of any worker do.
"""

from __future__ import annotations

import atexit
import logging
import signal
import sys
import threading
from functools import cache
from types import FrameType
from typing import Final

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import request_started
from django.db import Error

from ..core.backends import all_backends
from ..core.option_parsers import integer
from ..core.platform import ends_process, hold_signal, register_at_fork, signals
from ..core.process_identity import has_ended, process_identity
from ..core.sync import StopEvent
from ..db.connection import is_in_memory, own_connection
from ..models import Lease, Task, Worker
from ..models.check_migrated import check_schema
from ..models.lease import EMBEDDED_PREFIX
from ..reaper.crashed import recover_all
from .config import HOSTNAME, WorkerConfig
from .console_logging import log_to_console
from .started_registry import ExitReason
from .thread_worker import ThreadWorker

logger = logging.getLogger("horsies_django.worker")

#: Seconds between two looks at the lease, to renew it or to find it free.
LOOK_INTERVAL: Final = 5.0

#: Seconds after which a lease that was not renewed is free.
LEASE: Final = 20.0

#: Seconds after which leases of hosts that are gone are deleted.
_FORGET_AFTER: Final = 86_400.0

#: Seconds until the work begins if no request arrives before. A server that preloads the project forks in that time.
BEGIN_AFTER: Final = 2.0

#: Seconds that the database has at the end of the process.
_LEAVE_TIMEOUT: Final = 3.0


def start_in_server(threads: int, backend: str) -> None:
    """See :func:`horsies_django.embedded.start`."""
    _start(_config(threads, backend))
    _stop_with_server()


def start_under_runserver() -> None:
    """Start the workers of the backends whose OPTIONS say so. For the process of ``runserver`` that serves requests."""
    for backend in all_backends():
        options = backend.parsed.options.embedded
        if options.when == "runserver" and not backend.parsed.problems:  # otherwise runserver shows them and ends
            log_to_console(1)
            _start(_config(options.threads, backend.alias), is_development=True)


def _config(threads: int, backend: str) -> WorkerConfig:
    try:
        rule = integer(1, 1_000)
        rule.parse(threads)
    except ValueError:
        raise ValueError(f"threads is {threads!r}; allowed: {rule.allowed}.") from None
    config = WorkerConfig.of(
        backend,
        threads=threads,
        async_slots=threads,
        start_ahead=0,  # a running task has begun: a process that was killed leaves no other evidence
        is_embedded=True,
    )
    path = f"TASKS[{backend!r}]['OPTIONS']['worker']"
    if problems := list(config.options.worker.rules_without_process(path)):
        raise ImproperlyConfigured("\n".join(map(str, problems)))
    if is_in_memory(config.database):
        raise ImproperlyConfigured(f"The database {config.database!r} is in memory: no other thread can see its tasks.")
    return config


class EmbeddedWorker:
    """The worker of one backend in this process, and the thread that keeps the lease.

    ``is_development`` means that the work begins at once, is shown on the terminal, and is interrupted by the end of
    the process.
    """

    def __init__(self, config: WorkerConfig, *, is_development: bool) -> None:
        self.config = config
        self.is_development = is_development
        self.has_begun = False
        self.has_forked = False
        self._name = f"{EMBEDDED_PREFIX}:{config.backend}:{HOSTNAME}"[:100]
        self._dead: set[str] = set()  # workers of this host whose tasks are not all recovered yet
        self._worker: ThreadWorker | None = None
        self._stopped = StopEvent()
        self._ended = threading.Event()  # up to Python 3.12, join() takes a thread for ended after a KeyboardInterrupt
        self._thread = threading.Thread(target=self._run, name="horsies-embedded", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        request_started.connect(self._on_request)
        self._thread.start()

    def stop(self) -> None:
        """Stop soon. Safe to call from a signal handler."""
        self._stopped.set()
        if self._worker is not None:
            self._worker.stop(at_once=self.is_development)

    def join(self) -> None:
        """Wait for the end of the work, at most as long as its steps may take; a Ctrl-C interrupts what runs."""
        try:
            in_order = 0.0 if self.is_development else self.config.shutdown_timeout + self.config.timeout_grace
            self._ended.wait(in_order + _LEAVE_TIMEOUT)
        except KeyboardInterrupt:
            if self._worker is not None:
                self._worker.stop(at_once=True)
            self._ended.wait(_LEAVE_TIMEOUT)

    def _on_request(self, **_: object) -> None:
        self._stopped.wake()

    def _run(self) -> None:
        try:
            self._stand_by_and_work()
        finally:
            self._ended.set()

    def _stand_by_and_work(self) -> None:
        while not apps.ready_event.wait(1.0):
            if self._stopped.is_set:
                return
        if not self._begins():
            return
        problem = ""
        is_checked = False
        while not self._stopped.is_set:
            try:
                with own_connection(self.config.database, "embedded"):
                    if not is_checked:
                        check_schema(self.config.database, needs_grants=True)
                        is_checked = True
                    holder = self._acquire()
                if holder and self._work(holder) in (ExitReason.STOP_REQUESTED, ExitReason.FORBIDDEN):
                    return
                problem = ""
            except (Error, ImproperlyConfigured) as error:
                if problem != (problem := str(error)):  # once
                    logger.warning("embedded worker waits backend=%s: %s", self.config.backend, problem.strip())
            except Exception:
                logger.exception("embedded worker failed backend=%s: it tries again", self.config.backend)
            self._stopped.wait(LOOK_INTERVAL)

    def _begins(self) -> bool:
        """Return whether this process works: not if others were forked from it before."""
        if not self.is_development:
            self._stopped.wait(BEGIN_AFTER, until_woken=True)
        request_started.disconnect(self._on_request)
        with _fork_lock:
            self.has_begun = not self.has_forked
        return self.has_begun

    def _acquire(self) -> str:
        """Acquire the lease if it is free or its holder has ended, whose tasks are recovered; return the new holder."""
        leases = Lease.objects.using(self.config.database)
        holder = f"{self.config.new_worker_id()}:{process_identity()}"
        last = leases.holder_of(self._name)
        worker_id, _, identity = last.partition(":")
        if has_ended(identity):
            self._dead.add(worker_id)
            self._recover_dead()
            return holder if leases.take_over(self._name, last, holder) else ""
        if leases.acquire(self._name, holder, LEASE):
            return ""
        leases.forget(f"{EMBEDDED_PREFIX}:{self.config.backend}:", _FORGET_AFTER)
        return holder

    def _recover_dead(self) -> None:
        """Recover the tasks of dead workers, except those that another transaction has locked."""
        for worker_id in list(self._dead):
            rows = Task.objects.using(self.config.database).held_by(worker_id)
            if count := recover_all(rows):
                logger.warning("tasks of dead worker recovered id=%s count=%d", worker_id, count)
            if not rows.exists():
                Worker.objects.using(self.config.database).deregister(worker_id)
                self._dead.discard(worker_id)

    def _work(self, holder: str) -> ExitReason | None:
        """Work in another thread and keep the lease until stopped; return why it ended, None after an error."""
        reasons: list[ExitReason] = []
        worker = self._worker = ThreadWorker(self.config, holder.partition(":")[0])

        def run() -> None:
            try:
                reasons.append(worker.run(verbosity=int(self.is_development)))
            except Exception:
                logger.exception("embedded worker failed id=%s: it starts again", worker.worker_id)
            finally:
                self._stopped.wake()

        thread = threading.Thread(target=run, name="horsies-producer", daemon=True)
        thread.start()
        if self._stopped.is_set:  # stop() has not seen this worker
            self.stop()
        try:
            while thread.is_alive() and not self._stopped.wait(LOOK_INTERVAL, until_woken=True):
                self._renew(holder)
        finally:
            worker.stop()  # after an error too, because this thread no longer renews the lease
            thread.join()
        with own_connection(self.config.database, "embedded"):
            # What still runs ends with the process: then the next holder recovers it.
            if not Task.objects.using(self.config.database).held_by(worker.worker_id).exists():
                Lease.objects.using(self.config.database).release(self._name, holder)
        self._worker = None
        return reasons[0] if reasons else None

    def _renew(self, holder: str) -> None:
        """Renew the lease, and stop if it is lost. An outage, of which the producer logs each error, is waited for."""
        try:
            with own_connection(self.config.database, "embedded"):
                has_lease = Lease.objects.using(self.config.database).renew(self._name, holder)
                self._recover_dead()
        except Error:
            return
        if not has_lease and self._worker is not None:
            logger.warning("embedded worker has lost its lease to another process: it stops and stands by")
            self._worker.stop()


#: The embedded worker of each backend in this process.
_workers: Final[dict[str, EmbeddedWorker]] = {}

#: Held over each fork: nothing begins meanwhile.
_fork_lock: Final = threading.Lock()


def _start(config: WorkerConfig, *, is_development: bool = False) -> None:
    if config.backend in _workers:
        return
    _install_hooks()
    _workers[config.backend] = EmbeddedWorker(config, is_development=is_development)
    _workers[config.backend].start()


def _stop_all() -> None:
    for worker in _workers.values():
        worker.stop()


def _end() -> None:
    """Stop all workers, because the interpreter ends, and wait for them.

    After a Ctrl-C, which all processes of a terminal get, the parent of a server's processes sends them another signal:
    it does not end the wait. A second Ctrl-C does, whatever the server has installed.
    """
    arrived: list[int] = []
    handlers: dict[int, object] = {}
    if threading.current_thread() is threading.main_thread():
        for number in signals("SIGTERM", "SIGQUIT"):
            handlers[number] = signal.signal(number, lambda number, _: arrived.append(number))
        if callable(signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, signal.default_int_handler)
        hold_signal(signal.SIGTERM, is_held=False)
    _stop_all()
    for worker in _workers.values():
        worker.join()
    _workers.clear()
    for late in arrived:
        if handlers[late] == signal.SIG_DFL:  # the process ends by it, as it would have
            signal.signal(late, signal.SIG_DFL)
            signal.raise_signal(late)


@cache
def _install_hooks() -> None:
    # Before the interpreter waits for the threads of executors: from then on no coroutine can call sync code any more.
    getattr(threading, "_register_atexit", atexit.register)(_end)
    register_at_fork(before=_hold, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _hold() -> None:
    _fork_lock.acquire()


def _after_fork_in_parent() -> None:
    for worker in _workers.values():
        worker.has_forked = True
    _fork_lock.release()


def _after_fork_in_child() -> None:
    """Start workers of this process's own, if it was forked by a server; otherwise by a body, or by a request."""
    _fork_lock.release()
    inherited = list(_workers.values())
    _workers.clear()
    for worker in inherited:
        if not worker.has_begun:
            _workers[worker.config.backend] = EmbeddedWorker(worker.config, is_development=worker.is_development)
            _workers[worker.config.backend].start()


def _stop_with_server() -> None:
    """Stop when SIGTERM stops the server, whose process ends only after that.

    uvicorn handles the signal, and then raises it again for the handler that it has found: the default one, or, if it
    has loaded the site before, that of this function.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(signal.SIGTERM)
    if not callable(before) and not ends_process(signal.SIGTERM):
        return

    def handle(number: int, frame: FrameType | None) -> None:
        _stop_all()
        hold_signal(signal.SIGTERM, is_held=True)
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            sys.exit()

    signal.signal(signal.SIGTERM, handle)
