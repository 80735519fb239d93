"""Why a runner exits, and what else it reports to its supervisor."""

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


class Notice(StrEnum):
    """What a runner reports while it works: it receives the database's notifications, and its supervisor does not."""

    LISTENING = "listening"  # notifications arrive
    SCHEDULES_CHANGED = "schedules changed"
