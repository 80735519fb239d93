"""Why a runner exits."""

from __future__ import annotations

from enum import StrEnum


class ExitReason(StrEnum):
    """Why a runner exits."""

    DONE = "done"
    SPENT = "spent"  # it reached max_tasks_per_child or max_memory_mb
    STOP_REQUESTED = "dismissed"  # an operator asked for it
    STUCK = "stuck"  # only the end of the process stops one of its executions
    FORBIDDEN = "forbidden"  # its role has lost a privilege that it needs
    WRONG_DATABASE = "elsewhere"  # its settings name another database than its supervisor's
