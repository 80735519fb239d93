"""Doing a plan's work: in this process where that is all it takes, under a supervisor otherwise."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..reaper import run_pass
from ..tables import check_tables
from . import runner
from .connection import own_connection
from .inbox import Inbox, Word
from .leaving import Leaving
from .plan import Plan, Until
from .supervisor import Supervisor


def work(plan: Plan, verbosity: int = 1) -> int:
    """Work by ``plan`` and return the exit status: 0 done or stopped cleanly, 1 failed.

    A worker that ends by itself and has one process needs no supervisor: it works right here, in a test's process too.
    Raises ImproperlyConfigured if the tables are not there, or the database's role may not work on them.
    """
    check_tables(plan.database, is_worked_on=True)
    if plan.until is Until.STOPPED or (plan.processes > 1 and plan.until is Until.DRAINED):
        supervisor = Supervisor(plan, verbosity)
        with _told(supervisor.tell):
            return supervisor.run()
    if plan.reaper:
        with own_connection(plan.database, "reaper", waits=True):
            run_pass(plan.options)
    inbox = Inbox()
    words = iter([Word.STOP, Word.ABORT])

    def tell(_: Word) -> None:
        if (word := next(words, None)) is None:
            raise KeyboardInterrupt  # the third: whatever the database does, or a callback
        inbox.put(word)

    with _told(tell):
        leaving = Leaving.SPENT
        while leaving is Leaving.SPENT:  # it takes no more tasks, and there may be more
            leaving = runner.run(plan, plan.new_worker_id(), inbox)
            if plan.until is not Until.DRAINED:
                break
    return 1 if leaving is Leaving.FORBIDDEN else 0


@contextmanager
def _told(tell: Callable[[Word], None]) -> Iterator[None]:
    """Pass SIGTERM and SIGINT on as words, where this thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: tell(Word.STOP)) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
