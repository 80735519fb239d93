"""A worker in threads of a web process: for development, and for a small site on one server.

Of the processes of a host that serve the same database, one works, and the others stand by. The lease in the database
names the process that works, so that the next one recovers its tasks as soon as it is provably dead. One that may only
be stuck loses its lease after :data:`LEASE` seconds, and its tasks to a reaper, as those of any worker do.
"""

from __future__ import annotations

import atexit
import inspect
import logging
import signal
import sys
import threading
from asyncio import BaseEventLoop
from functools import cache
from itertools import islice
from socketserver import BaseServer
from traceback import walk_stack
from types import FrameType
from typing import Final

from django.apps import apps
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.db import Error

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
from .thread_worker import NEED_PROCESSES, ThreadWorker

logger = logging.getLogger("horsies_django.worker")

#: Seconds between two looks at the lease, to renew it or to find it free.
LOOK_INTERVAL: Final = 5.0

#: Seconds after which a lease that was not renewed is free.
LEASE: Final = 20.0

#: Seconds until the work begins. A server that preloads the project forks in that time.
BEGIN_AFTER: Final = 2.0

#: Seconds between two looks whether runserver serves.
_SERVES_INTERVAL: Final = 0.1

#: Seconds that the database has at the end of the process.
_LEAVE_TIMEOUT: Final = 3.0

#: After these, a worker does no more work, and keeps its lease so that no other process of the host does it either.
_FINAL: Final = {ExitReason.STOP_REQUESTED, ExitReason.FORBIDDEN}

#: The code in which runserver waits for requests: Django's own, and that of packages which serve ASGI.
_SERVING: Final = {BaseServer.serve_forever.__code__, BaseEventLoop.run_forever.__code__}

#: Modules that fork helpers of a process, unlike servers, which fork processes that serve the same site.
_FORK_HELPERS: Final = {"multiprocessing.popen_fork", "billiard.popen_fork", "subprocess", "pty"}


def start_in_server(threads: int, backend: str) -> None:
    """See :func:`horsies_django.embedded.start`."""
    config = _config(threads, backend)
    if names := [name for name in NEED_PROCESSES if getattr(config, name)]:
        raise ImproperlyConfigured(
            f"TASKS[{backend!r}]['OPTIONS']['worker'] has {', '.join(names)}: an embedded worker has no processes that "
            "it could replace, kill or watch. Remove this from the settings of the site, or run horsies_worker."
        )
    if "pytest" in sys.modules or hasattr(mail, "outbox"):
        return  # a test has imported wsgi.py: its tasks, or those of the developer's own database, are not for it
    _start(config)
    _stop_with_server()


def start_under_runserver(backend: str, threads: int) -> None:
    """Start the worker of a backend whose OPTIONS say so. For the process of ``runserver`` that serves requests."""
    log_to_console(1)
    config = _config(threads, backend)
    if names := [name for name in NEED_PROCESSES if getattr(config, name)]:  # meant for servers with the same settings
        logger.warning("options ignored, because an embedded worker has no processes names=%s", ",".join(names))
    _start(config, is_development=True)


def _config(threads: int, backend: str) -> WorkerConfig:
    try:
        rule = integer(1, 1_000)
        rule.parse(threads)
    except ValueError:
        raise ValueError(f"threads is {threads!r}; allowed: {rule.allowed}.") from None
    return WorkerConfig.of(backend, threads=threads, async_slots=threads)


class EmbeddedWorker:
    """The worker of one backend in this process, and the thread that keeps the lease.

    ``is_development`` means that the work begins as soon as ``runserver`` serves, is shown on the terminal, and is
    interrupted by the end of the process.
    """

    def __init__(self, config: WorkerConfig, *, is_development: bool) -> None:
        self.config = config
        self.is_development = is_development
        self.has_begun = False
        self.has_forked = False
        self._name = f"{EMBEDDED_PREFIX}:{config.backend}:{HOSTNAME}"[:100]
        self._holder: str | None = None  # this process in the lease, since it last acquired it
        self._worker: ThreadWorker | None = None
        self._stopped = StopEvent()
        self._ended = threading.Event()  # up to Python 3.12, join() takes a thread for ended after a KeyboardInterrupt
        self._thread = threading.Thread(target=self._run, name="horsies-embedded", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, *, at_once: bool = False) -> None:
        """Stop soon, and interrupt what runs if ``at_once``. Safe to call from a signal handler."""
        self._stopped.set()
        self._stop_worker(at_once=at_once or self.is_development)

    def join(self, *, at_once: bool = False) -> None:
        """Wait for the end of the work, at most as long as its steps may take after the same ``stop``."""
        waits_for_bodies = not (at_once or self.is_development)
        in_order = self.config.shutdown_timeout + self.config.timeout_grace if waits_for_bodies else 0.0
        self._ended.wait(in_order + _LEAVE_TIMEOUT)

    def _stop_worker(self, *, at_once: bool) -> None:
        if (worker := self._worker) is not None:
            worker.stop(at_once=at_once)

    def _run(self) -> None:
        try:
            self._stand_by_and_work()
        finally:
            self._ended.set()

    def _stand_by_and_work(self) -> None:
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
                if holder:
                    self._work(holder)
                problem = ""
            except (Error, ImproperlyConfigured) as error:
                if problem != (problem := str(error)):  # once
                    logger.warning("embedded worker waits backend=%s: %s", self.config.backend, problem.strip())
            except Exception:
                logger.exception("embedded worker failed backend=%s: it tries again", self.config.backend)
            self._stopped.wait(LOOK_INTERVAL)

    def _begins(self) -> bool:
        """Return whether this process works: not if a server has forked others from it before.

        ``runserver`` ends at once, whatever runs, if another process has taken its port.
        """
        while not (_serves() if self.is_development else apps.ready):
            if self._stopped.wait(_SERVES_INTERVAL):
                return False
        if not self.is_development:
            self._stopped.wait(BEGIN_AFTER)
        self.has_begun = not self.has_forked
        return self.has_begun

    def _acquire(self) -> str:
        """Acquire the lease if it is free, or its holder has ended; return the new holder, or "".

        The tasks of a holder that has ended are recovered, except those that another transaction has locked.
        """
        leases = Lease.objects.using(self.config.database)
        last = leases.holder_of(self._name)
        worker_id, _, identity = last.partition(":")
        if has_ended(identity) or last == self._holder:  # this process still holds it after an error
            if count := recover_all(Task.objects.using(self.config.database).held_by(worker_id)):
                logger.warning("tasks of dead worker recovered id=%s count=%d", worker_id, count)
            Worker.objects.using(self.config.database).deregister(worker_id)
            leases.release(self._name, last)
        holder = f"{self.config.new_worker_id()}:{process_identity()}"
        return "" if leases.acquire(self._name, holder, LEASE) else holder

    def _work(self, holder: str) -> None:
        """Work in another thread and keep the lease until stopped or after an error."""
        self._holder = holder
        reasons: set[ExitReason] = set()
        worker = self._worker = ThreadWorker(self.config, holder.partition(":")[0])

        def run() -> None:
            try:
                reasons.add(worker.run(verbosity=int(self.is_development)))
            except Exception:
                logger.exception("embedded worker failed id=%s: it starts again", worker.worker_id)
            finally:
                self._stopped.wake()

        if self._stopped.is_set:  # before this worker could be stopped
            self._stop_worker(at_once=True)
        thread = threading.Thread(target=run, name="horsies-producer", daemon=True)
        thread.start()
        try:
            while thread.is_alive() or reasons & _FINAL:
                if self._stopped.wait(LOOK_INTERVAL, until_woken=True) or not self._renew(holder):
                    break
        finally:
            if not self._stopped.is_set:  # a second stop at once would not wait for what it interrupts
                worker.stop()
            thread.join()
        with own_connection(self.config.database, "embedded"):
            # What still runs ends with the process: then the next holder recovers it.
            if not Task.objects.using(self.config.database).held_by(worker.worker_id).exists():
                Lease.objects.using(self.config.database).release(self._name, holder)
        self._worker = None

    def _renew(self, holder: str) -> bool:
        """Renew the lease; return whether it is not lost. An outage is waited for: the producer logs its errors."""
        try:
            with own_connection(self.config.database, "embedded"):
                has_lease = Lease.objects.using(self.config.database).renew(self._name, holder)
        except Error:
            return True
        if not has_lease:
            logger.warning("embedded worker has lost its lease to another process: it stops and stands by")
        return has_lease


#: The embedded worker of each backend in this process.
_workers: Final[dict[str, EmbeddedWorker]] = {}


def _start(config: WorkerConfig, *, is_development: bool = False) -> None:
    if is_in_memory(config.database):
        raise ImproperlyConfigured(f"The database {config.database!r} is in memory: no other thread can see its tasks.")
    if config.backend in _workers:
        return
    _install_hooks()
    _workers[config.backend] = EmbeddedWorker(config, is_development=is_development)
    _workers[config.backend].start()


def _stop_all(*, at_once: bool = False) -> None:
    for worker in _workers.values():
        worker.stop(at_once=at_once)


def _join_all(*, at_once: bool = False) -> None:
    for worker in _workers.values():
        worker.join(at_once=at_once)


def _end() -> None:
    """Stop all workers, because the interpreter ends, and wait for them.

    After a Ctrl-C, which all processes of a terminal get, the parent of a server's processes sends them another signal:
    it does not end the wait. A second Ctrl-C does, whatever the server has installed.
    """
    arrived: list[int] = []
    handlers: dict[int, object] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in signals("SIGTERM", "SIGQUIT"):
                handlers[number] = signal.signal(number, lambda number, _: arrived.append(number))
            if callable(signal.getsignal(signal.SIGINT)):
                signal.signal(signal.SIGINT, signal.default_int_handler)
            hold_signal(signal.SIGTERM, is_held=False)
        _stop_all()
        _join_all()
    except KeyboardInterrupt:
        _stop_all(at_once=True)
        _join_all(at_once=True)
    _workers.clear()
    for late in arrived:
        if handlers[late] == signal.SIG_DFL:  # the process ends by it, as it would have
            signal.signal(late, signal.SIG_DFL)
            signal.raise_signal(late)


@cache
def _install_hooks() -> None:
    # Before the interpreter waits for the threads of executors: from then on no coroutine can call sync code any more.
    getattr(threading, "_register_atexit", atexit.register)(_end)
    register_at_fork(after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _after_fork_in_parent() -> None:
    for worker in () if _is_helper_forked() else _workers.values():
        worker.has_forked = True


def _after_fork_in_child() -> None:
    """Start workers of this process's own, if it was forked by a server; otherwise by a body, or by a request."""
    inherited = [] if _is_helper_forked() else list(_workers.values())
    _workers.clear()
    for worker in inherited:
        if not worker.has_begun:
            _workers[worker.config.backend] = EmbeddedWorker(worker.config, is_development=worker.is_development)
            _workers[worker.config.backend].start()


def _is_helper_forked() -> bool:
    """Return whether the code that forks is that of a library, not of a server. For the hooks of a fork."""
    callers = islice(walk_stack(inspect.currentframe()), 2, 3)  # of this function, of the hook, of the fork if not in C
    return any(frame.f_globals.get("__name__") in _FORK_HELPERS for frame, _ in callers)


def _serves() -> bool:
    """Return whether a thread waits for requests: the port is bound, and the project was checked."""
    stacks = map(walk_stack, sys._current_frames().values())
    return any(frame.f_code in _SERVING for stack in stacks for frame, _ in stack)


@cache
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
