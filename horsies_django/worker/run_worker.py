"""Doing a plan's work: in this process where that is all it takes, under a supervisor otherwise."""

from __future__ import annotations

from ..models.check_migrated import check_tables
from ..reaper.duties import run_pass
from . import runner
from .commands import Inbox, Word
from .config import Plan, Until
from .connection import own_connection
from .exit_reason import Leaving
from .stop_signals import stop_signals
from .supervisor import ABORT_TIMEOUT, LEAVE_TIMEOUT, Supervisor


def work(plan: Plan, verbosity: int = 1, *, owns_process: bool = False) -> int:
    """Work by ``plan`` and return the exit status: 0 done or stopped cleanly, 1 failed.

    A worker that ends by itself and has one process needs no supervisor: it works right here, in a test's process too.
    If it does not stop in time after a signal, the process exits if it ``owns_process``; if not, KeyboardInterrupt is
    raised. Raises ImproperlyConfigured if the tables are not there, or the database's role may not work on them.
    """
    check_tables(plan.database, is_worked_on=True)
    if plan.until is Until.STOPPED or (plan.processes > 1 and plan.until is Until.DRAINED):
        supervisor = Supervisor(plan, verbosity)
        with stop_signals(lambda: supervisor.tell(Word.STOP), owns_process=owns_process):
            return supervisor.run()
    if plan.reaper:
        with own_connection(plan.database, "reaper", waits=True):
            run_pass(plan.options)
    inbox = Inbox()
    words = iter([Word.STOP])
    in_order = plan.shutdown_timeout + plan.timeout_grace + LEAVE_TIMEOUT
    with stop_signals(lambda: inbox.put(next(words, Word.ABORT)), in_order, ABORT_TIMEOUT, owns_process=owns_process):
        leaving = Leaving.SPENT
        while leaving is Leaving.SPENT:  # it takes no more tasks, and there may be more
            leaving = runner.run(plan, plan.new_worker_id(), inbox, verbosity=verbosity if owns_process else 0)
            if plan.until is not Until.DRAINED:
                break
    return 1 if leaving is Leaving.FORBIDDEN else 0
