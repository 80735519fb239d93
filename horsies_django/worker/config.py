"""The configuration of one worker: settings, flags and environment combined."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from django.db import connections

from ..core.backends import horsies_backend
from ..db.connection import check_identity, identity_of
from ..db.notifications import ANY_QUEUE

if TYPE_CHECKING:
    from ..core.options import Options

HOSTNAME: Final = socket.gethostname()

#: The key under which the serialized configuration names the sender's database.
_IDENTITY: Final = "identity"


class Until(StrEnum):
    """When a worker is done."""

    STOPPED = "stopped"
    ONE_CLAIM = "one claim"
    DRAINED = "drained"


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker does. Travels to its runners as JSON. Durations are seconds."""

    backend: str
    queues: tuple[str, ...]
    exclude_queues: tuple[str, ...]
    processes: int
    threads: int
    async_slots: int
    prefetch: int
    start_ahead: int
    poll_interval: float
    max_tasks_per_child: int | None
    max_memory_mb: int | None
    shutdown_timeout: float
    task_timeout: float | None
    timeout_grace: float
    stall_timeout: float | None
    order: str
    reaper: bool
    scheduler: bool
    fork: bool
    name: str
    heartbeat_file: str
    state_dir: str
    conn_max_age: float | Literal["inherit"] | None
    reset_sessions: bool
    until: Until = Until.STOPPED
    is_quiet: bool = False  # claims nothing until it is resumed
    is_embedded: bool = False  # the process also serves requests, so no task may have it killed

    @classmethod
    def of(
        cls, backend: str, *, queues: Sequence[str] = (), exclude_queues: Sequence[str] = (), **changes: Any
    ) -> Self:
        """Return the configuration from a backend's settings, with ``changes`` by name.

        Raises ValueError for an unknown queue.
        """
        alias = horsies_backend(backend)
        for name in (*queues, *exclude_queues):
            if alias.queues and name not in alias.queues:
                allowed = ", ".join(sorted(alias.queues))
                raise ValueError(f"There is no queue {name!r} in TASKS[{backend!r}]; its QUEUES are {allowed}.")
        names = tuple(queues or sorted(alias.queues))
        config = cls(backend, names, tuple(exclude_queues), **asdict(alias.config.worker))
        return replace(config, **changes)

    @cached_property
    def options(self) -> Options:
        """The options of the backend."""
        return horsies_backend(self.backend).config

    @property
    def database(self) -> str:
        """The alias of the queue's database."""
        return self.options.database

    @property
    def max_stall(self) -> float:
        """Seconds that a runner may be stalled before its supervisor kills it."""
        return self.stall_timeout or self.options.recovery.running_stale_after

    def serves(self, queue_name: str) -> bool:
        """Whether this worker serves the queue, or any queue for :data:`ANY_QUEUE`."""
        if queue_name == ANY_QUEUE:
            return True
        return queue_name not in self.exclude_queues and (not self.queues or queue_name in self.queues)

    @property
    def row_values(self) -> dict[str, Any]:
        """The columns of the worker's row that describe its configuration."""
        return {
            "backend": self.backend,
            "queues": list(self.queues),
            "excluded_queues": list(self.exclude_queues),
            "threads": self.threads,
            "async_slots": self.async_slots,
            "heartbeat_interval": self.options.recovery.heartbeat_interval,
        }

    def new_worker_id(self) -> str:
        """Return a new unique id that begins with the worker's name."""
        # Short, because each task stores it up to four times: in its row, its attempt and an index.
        return f"{(self.name or HOSTNAME)[:24]}-{secrets.token_hex(6)}"

    def dumps(self) -> str:
        """Return the configuration as one line of JSON, with the database that this process works on."""
        return json.dumps(asdict(self) | {_IDENTITY: identity_of(connections[self.database].settings_dict)})

    @classmethod
    def loads(cls, line: str) -> Self:
        """Parse what :meth:`dumps` wrote. Raises ImproperlyConfigured if that process works on another database."""
        stored = json.loads(line)
        identity = stored.pop(_IDENTITY)
        for name in ("queues", "exclude_queues"):
            stored[name] = tuple(stored[name])
        config = cls(**stored | {"until": Until(stored["until"])})
        check_identity(config.database, identity)
        return config
