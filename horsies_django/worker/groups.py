"""Process groups: programs that a task starts belong to the group of its runner and end with that.

A program that a task starts in a session or a group of its own is left alone.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

#: Seconds between SIGTERM and SIGKILL.
GROUP_GRACE: Final = 1.0

#: Seconds between two checks whether the group has ended.
_INTERVAL: Final = 0.02


def kill_process_group(leader: int) -> None:
    """Kill what is left of the group of a process that has ended; return once it is gone or killed."""
    kill_at = time.monotonic() + GROUP_GRACE
    is_left = _signal_group(leader, signal.SIGTERM)
    while is_left and time.monotonic() < kill_at:
        time.sleep(_INTERVAL)
        is_left = _signal_group(leader, 0)
    if is_left:
        _signal_group(leader, signal.SIGKILL)


def _signal_group(group: int, number: int) -> bool:
    """Send a signal, or with 0 none, to a group; return whether a process of it can get one."""
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass  # in a container this process may be the one that adopts orphans
    try:
        os.killpg(group, number)
    except OSError:  # there is none, or none of ours
        return False
    return True
