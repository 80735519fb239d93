"""Whether a worker is alive, judged by the age of its last heartbeat."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from .options import RecoveryOptions

#: A worker that has been silent for more than this many heartbeat intervals is not responding.
MISSED_INTERVALS: Final = 2


class Liveness(StrEnum):
    """The state of a worker by its heartbeats. Of one that is offline, the reaper recovers the tasks."""

    ONLINE = "online"
    NOT_RESPONDING = "not responding"
    OFFLINE = "offline"


def liveness_of(silence: float, recovery: RecoveryOptions) -> Liveness:
    """Return the state of a worker whose last heartbeat is ``silence`` seconds old by the database's clock."""
    if silence >= recovery.stale_after:
        return Liveness.OFFLINE
    return Liveness.NOT_RESPONDING if silence > MISSED_INTERVALS * recovery.heartbeat_interval else Liveness.ONLINE
