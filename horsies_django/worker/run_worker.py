"""Runs a worker: in this process if that is enough, under a supervisor otherwise, and on Windows in threads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from ..core.platform import IS_POSIX
from ..db.connection import own_connection
from ..models.check_migrated import check_tables
from ..reaper.duties import run_pass
from . import runner
from .config import Until, WorkerConfig
from .figures import SupervisorFigures, serve_nothing
from .inbox import Command, Inbox
from .started_registry import ExitReason
from .stop_signals import ABORT_TIMEOUT, LEAVE_TIMEOUT, quiet_signals, starting, stop_signals
from .thread_worker import NEED_PROCESSES, ThreadWorker

logger = logging.getLogger("horsies_django.worker")


def run_worker(
    config: WorkerConfig,
    verbosity: int = 1,
    *,
    owns_process: bool = False,
    serve: Callable[[SupervisorFigures], AbstractContextManager[None]] = serve_nothing,
) -> int:
    """Work by ``config`` and return the exit status: 0 done or stopped cleanly, 1 failed.

    A worker that ends by itself and has one process needs no supervisor: it works in this process, even in a test. If
    it does not stop in time after a signal, the process exits if it ``owns_process``; otherwise KeyboardInterrupt is
    raised. ``serve`` is entered while a supervisor runs, with its figures. Raises ImproperlyConfigured if the tables
    are missing or the database role may not work on them, and what ``serve`` raises.
    """
    with starting(owns_process=owns_process):
        check_tables(config.database, needs_grants=True)
    if IS_POSIX and (config.until is Until.STOPPED or (config.processes > 1 and config.until is Until.DRAINED)):
        from .supervisor import Supervisor  # only here, because Windows can't import it

        return Supervisor(config, verbosity, serve).run(owns_process=owns_process)
    if config.until is Until.STOPPED:
        return _run_in_threads(config, verbosity, has_server=serve is not serve_nothing, owns_process=owns_process)
    if config.reaper:
        with own_connection(config.database, "reaper", waits=True):
            run_pass(config.options)
    inbox = Inbox()
    commands = iter([Command.STOP])
    in_order = config.shutdown_timeout + config.timeout_grace + LEAVE_TIMEOUT
    with (
        stop_signals(
            lambda: inbox.put(next(commands, Command.ABORT)), in_order, ABORT_TIMEOUT, owns_process=owns_process
        ),
        quiet_signals(inbox.put, owns_process=owns_process),
    ):
        exit_reason = ExitReason.SPENT
        while exit_reason is ExitReason.SPENT:  # it reached its limits, and there may be more tasks
            exit_reason = runner.run(config, config.new_worker_id(), inbox, verbosity=verbosity if owns_process else 0)
            if config.until is not Until.DRAINED:
                break
    return 1 if exit_reason is ExitReason.FORBIDDEN else 0


def _run_in_threads(config: WorkerConfig, verbosity: int, *, has_server: bool, owns_process: bool) -> int:
    """Work in this process until stopped, where the system can't start others: like an embedded worker, without lease.

    The options that need processes may be meant for servers with the same settings, so they only cause a warning.
    """
    ignored = [name for name in NEED_PROCESSES if getattr(config, name)]
    ignored += ["processes"] * (config.processes > 1) + ["metrics_port"] * has_server
    if ignored:
        logger.warning("options ignored, because this system has no runner processes names=%s", ",".join(ignored))
    worker = ThreadWorker(config, config.new_worker_id())
    at_once = iter([False])
    in_order = config.shutdown_timeout + config.timeout_grace + LEAVE_TIMEOUT
    with stop_signals(
        lambda: worker.stop(at_once=next(at_once, True)), in_order, ABORT_TIMEOUT, owns_process=owns_process
    ):
        exit_reason = worker.run(verbosity=verbosity if owns_process else 0)
    return 1 if worker.has_failed or exit_reason is ExitReason.FORBIDDEN else 0
