"""Process groups: what a body starts belongs to the group of its runner, and ends with that.

A program that a body starts in a session or a group of its own is left alone.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

#: Seconds between SIGTERM and SIGKILL.
GROUP_GRACE: Final = 1.0

#: Seconds between two looks whether the group has ended.
_INTERVAL: Final = 0.02


def kill_process_group(leader: int) -> None:
    """End what is left of the group that a process has led which has ended; return once it is gone or killed."""
    kill_at = time.monotonic() + GROUP_GRACE
    is_left = _signal_group(leader, signal.SIGTERM)
    while is_left and time.monotonic() < kill_at:
        time.sleep(_INTERVAL)
        is_left = _signal_group(leader, 0)
    if is_left:
        _signal_group(leader, signal.SIGKILL)


def _signal_group(group: int, number: int) -> bool:
    """Send a signal, or with 0 none, to a group; return whether it has a process that can get one."""
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass  # in a container this process may be the one that orphans are left to
    try:
        os.killpg(group, number)
    except OSError:  # there is none, or none of ours
        return False
    return True
