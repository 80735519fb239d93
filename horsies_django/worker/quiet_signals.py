"""SIGTSTP and SIGCONT: the first makes a worker quiet, the second resumes it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .inbox import Command


def handle_quiet_signals(send: Callable[[Command], None]) -> dict[int, Any]:
    """Have SIGTSTP and SIGCONT send their commands from now on; return the handlers from before.

    A suspended process gets SIGCONT too, so that resumes only what SIGTSTP has made quiet.
    """
    is_quiet = False

    def handle(number: int, _: object) -> None:
        nonlocal is_quiet
        if number == signal.SIGTSTP or is_quiet:
            is_quiet = number == signal.SIGTSTP
            send(Command.QUIET if is_quiet else Command.RESUME)

    return {number: signal.signal(number, handle) for number in (signal.SIGTSTP, signal.SIGCONT)}


@contextmanager
def quiet_signals(send: Callable[[Command], None], *, owns_process: bool) -> Iterator[None]:
    """Have SIGTSTP and SIGCONT send their commands in this block, if the process runs nothing but this worker."""
    if not owns_process or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = handle_quiet_signals(send)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
