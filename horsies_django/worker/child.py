"""The process of a runner under a supervisor: forked, or ``python -m horsies_django.worker.child``.

Its standard input is the supervisor's voice: first who to be and what to do, then a word a line. The end of it means
that the supervisor is dead, and then the runner goes too, for nobody else would know of what it runs.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Final

import django
from django.apps import apps

if TYPE_CHECKING:
    from .inbox import Inbox

#: Exit status of a runner whose supervisor is gone, of one that has run as many tasks as a child may, of one that is
#: done, of one with a body that could not be stopped, of one that an operator has asked to go, and of one whose
#: settings name another database than its supervisor's. Not 0, with which a body may end the process as well.
ORPHANED: Final = 70
SPENT: Final = 71
DONE: Final = 72
STUCK: Final = 73
DISMISSED: Final = 74
ELSEWHERE: Final = 75

#: What a runner writes into the pipe to its supervisor when it takes no more work.
RETIRING: Final = b"retiring\n"


def main(descriptors: Sequence[int] = ()) -> None:
    """Be the runner that the first line describes.

    One that was forked has its ``descriptors``, the pipe and the memory, under other numbers than that line says.
    """
    # The terminal's Ctrl-C reaches the supervisor too, and its word is what counts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    voice = _take_voice()
    if not (line := voice.readline()):
        os._exit(ORPHANED)
    worker_id, verbosity, *numbers, plan = line.rstrip("\n").split(" ", 4)
    pipe, memory = descriptors or map(int, numbers)
    for inherited in (pipe, memory):
        os.set_inheritable(inherited, False)  # a body's subprocess has no business with it
    if not apps.ready:
        django.setup()
    from django.core.exceptions import ImproperlyConfigured
    from django.db import connections

    from . import runner
    from .begun import Begun
    from .console import log_to_console
    from .inbox import Inbox, Word
    from .plan import Plan
    from .tick import Leaving

    log_to_console(int(verbosity))
    try:
        orders = Plan.loads(plan)
    except ImproperlyConfigured as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(ELSEWHERE)
    # A body must not be the one to find out that a connection died while its thread had nothing to do.
    for database in connections.settings.values():
        database["CONN_HEALTH_CHECKS"] = True
    inbox = Inbox()
    # A SIGTERM to the whole group comes beside the supervisor's word, so it says no more than that.
    signal.signal(signal.SIGTERM, lambda *_: inbox.put(Word.STOP))
    threading.Thread(target=_obey, args=(voice, inbox), name="horsies-control", daemon=True).start()
    retire = partial(os.write, pipe, RETIRING)
    leaving = runner.run(orders, worker_id, inbox, lambda: retire() > 0, Begun(memory))
    # Bodies that outlived the shutdown run on daemon threads, which the interpreter's own exit might stumble over.
    logging.shutdown()
    statuses = {Leaving.DONE: DONE, Leaving.SPENT: SPENT, Leaving.STUCK: STUCK, Leaving.DISMISSED: DISMISSED}
    os._exit(statuses[leaving])


def _take_voice() -> IO[str]:
    """Keep the supervisor's pipe to ourselves: a body's subprocess must neither read its words nor wait for its end."""
    voice = os.fdopen(os.dup(0), "r")
    silence = os.open(os.devnull, os.O_RDONLY)
    os.dup2(silence, 0)
    os.close(silence)
    return voice


def _obey(voice: IO[str], inbox: Inbox) -> None:
    from .inbox import Word

    for word in voice:
        inbox.put(Word[word.strip()])
    os._exit(ORPHANED)


if __name__ == "__main__":
    main()
