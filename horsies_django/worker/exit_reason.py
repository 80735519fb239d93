"""Why a runner leaves."""

from __future__ import annotations

from enum import StrEnum


class ExitReason(StrEnum):
    """Why a runner leaves."""

    DONE = "done"
    WORN_OUT = "spent"  # it has run as many tasks, or takes as much memory, as a runner may
    STOP_REQUESTED = "dismissed"  # an operator has asked for it
    STUCK = "stuck"  # a body can't be stopped but with the process
    FORBIDDEN = "forbidden"  # its role has lost a privilege that it needs
    WRONG_DATABASE = "elsewhere"  # its settings name another database than its supervisor's
