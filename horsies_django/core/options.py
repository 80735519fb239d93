"""The OPTIONS of a backend, typed: their defaults, and the rule that parses each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Literal

from .limits import Rate
from .option_parsers import (
    BOOLEAN,
    CONN_MAX_AGE,
    INHERIT,
    LATENCY,
    LOGGERS,
    LONGEST_DURATION,
    MAPPER,
    MAX_CONCURRENCY,
    METRICS_TOKEN,
    MIDDLEWARE,
    MODULES,
    PRIORITY,
    PUBLIC_ENDPOINTS,
    RATE_LIMIT,
    RETENTION,
    RETENTION_BY_STATE,
    RETRY_POLICY,
    WAIT,
    WEIGHT,
    OptionParser,
    integer,
    milliseconds,
    one_of,
    seconds,
    text,
)
from .retry import MAX_INTERVAL, MAX_RETRIES, RetryPolicy


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in the settings: its path, its value and the allowed values."""

    path: str
    value: object
    allowed: str
    hint: str
    unknown_key: bool = False

    def __str__(self) -> str:
        if self.unknown_key:
            return f"{self.path} is not an option; allowed: {self.allowed}."
        return f"{self.path} is {self.value!r}; allowed: {self.allowed}."


def _option(default: object, rule: OptionParser) -> Any:
    """Return a field whose metadata ``read_settings`` reads."""
    return field(default=default, metadata={"rule": rule})


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
    """When the tasks of a worker without heartbeats are taken from it."""

    auto_requeue_stale_claimed: bool = _option(True, BOOLEAN)
    claimed_stale_threshold_ms: int = _option(120_000, milliseconds(1_000, 3_600_000))
    claimer_heartbeat_interval_ms: int = _option(30_000, milliseconds(100, 120_000))
    auto_fail_stale_running: bool = _option(True, BOOLEAN)
    running_stale_threshold_ms: int = _option(300_000, milliseconds(1_000, 7_200_000))
    runner_heartbeat_interval_ms: int = _option(30_000, milliseconds(100, 120_000))
    check_interval_ms: int = _option(30_000, milliseconds(100, 600_000))
    heartbeat_retention_hours: int | None = _option(24, integer(1, 8_760, none="keep"))
    # By default never: operators may pause a workflow for any time.
    paused_workflow_auto_cancel_after: timedelta | None = _option(None, WAIT)

    @property
    def claimed_stale_after(self) -> float:
        """The seconds without a heartbeat after which a CLAIMED task is taken from its worker."""
        return self.claimed_stale_threshold_ms / 1_000

    @property
    def running_stale_after(self) -> float:
        """The seconds without a heartbeat after which a RUNNING task is taken from its worker."""
        return self.running_stale_threshold_ms / 1_000

    @property
    def stale_after(self) -> float:
        """The seconds without a heartbeat after which a worker counts as dead."""
        return min(self.claimed_stale_after, self.running_stale_after)

    @property
    def check_interval(self) -> float:
        """The seconds between two passes of the reaper."""
        return self.check_interval_ms / 1_000

    @property
    def heartbeat_interval(self) -> float:
        """The seconds between two heartbeats of a worker: the shorter interval of its two roles."""
        return min(self.claimer_heartbeat_interval_ms, self.runner_heartbeat_interval_ms) / 1_000

    def rules_between_keys(self, path: str) -> Iterator[Problem]:
        """Yield a problem for each threshold under twice its heartbeat interval."""
        for state, role in (("claimed", "claimer"), ("running", "runner")):
            threshold = getattr(self, f"{state}_stale_threshold_ms")
            interval = getattr(self, f"{role}_heartbeat_interval_ms")
            if threshold < 2 * interval:
                yield Problem(
                    f"{path}['{state}_stale_threshold_ms']",
                    threshold,
                    f"at least {2 * interval}, twice {role}_heartbeat_interval_ms",
                    "One lost heartbeat must not make a living worker look dead.",
                )


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """How long ended tasks are kept."""

    completed: timedelta | None = _option(timedelta(days=7), RETENTION)
    failed: timedelta | None = _option(timedelta(days=30), RETENTION)
    cancelled: timedelta | None = _option(timedelta(days=30), RETENTION)
    expired: timedelta | None = _option(timedelta(days=30), RETENTION)

    def retention_for(self, state: str) -> timedelta | None:
        """Return how long a task that ended in ``state`` is kept; None is for ever."""
        kept: timedelta | None = getattr(self, state.lower())
        return kept


@dataclass(frozen=True, slots=True)
class _InheritedRetention:
    """The keys of a ``retention`` whose missing states inherit from the next level."""

    completed: Any = _option(INHERIT, RETENTION)
    failed: Any = _option(INHERIT, RETENTION)
    cancelled: Any = _option(INHERIT, RETENTION)
    expired: Any = _option(INHERIT, RETENTION)


def _inherited_retention() -> Any:
    """Return the field for a retention by state; a plain value in the settings applies to completed tasks."""
    metadata = {"rule": RETENTION_BY_STATE, "keys": _InheritedRetention, "default": INHERIT}
    return field(default_factory=dict, metadata=metadata)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The defaults of a queue; each column of its row can override one later."""

    # Its rank where the order is "strict".
    priority: int = _option(0, PRIORITY)
    # Its share where the order is "weighted".
    weight: int = _option(1, WEIGHT)
    # Running tasks of all workers together; 0 stops the queue.
    max_concurrency: int | None = _option(None, MAX_CONCURRENCY)
    # Starts of all workers together.
    rate_limit: Rate | None = _option(None, RATE_LIMIT)
    # The admin and horsies_status warn if the oldest due task has waited longer.
    latency_warning: timedelta | None = _option(None, LATENCY)
    # Only of the states that differ from the backend's.
    retention: Mapping[str, timedelta | None] = _inherited_retention()

    def retention_for(self, state: str, inherited: timedelta | None) -> timedelta | None:
        """Return how long a task that ended in ``state`` is kept, by default ``inherited``; None is for ever."""
        return self.retention.get(state.lower(), inherited)


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The defaults of ``horsies_worker``; a flag or an environment variable overrides each."""

    # One process uses one core for Python code; each more takes more memory.
    processes: int = _option(1, integer(1, 256))
    # More than the machine has cores, because most tasks wait for I/O.
    threads: int = _option(8, integer(1, 1_000))
    # Each coroutine that uses the database has a connection, and PostgreSQL allows 100 of them by default.
    async_slots: int = _option(20, integer(1, 100_000))
    # Other workers can't claim a prefetched task, and no task of higher priority overtakes it.
    prefetch: int = _option(0, integer(0, 10_000))
    # Maximum short tasks that start before a slot is free, if one will be free within milliseconds.
    start_ahead: int = _option(256, integer(0, 5_000))
    # Seconds between two polls of an idle worker without LISTEN; five times as long with LISTEN.
    poll_interval: float = _option(1.0, seconds(0.01, 3_600))
    max_tasks_per_child: int | None = _option(None, integer(1, 1_000_000_000, none="never replaced"))
    # A runner that uses more memory is replaced once its tasks are done.
    max_memory_mb: int | None = _option(None, integer(16, 1_000_000_000, none="never replaced"))
    # Seconds; the same as the grace period of Kubernetes.
    shutdown_timeout: float = _option(30.0, seconds(0, 86_400))
    # Seconds that a body may run if its task sets no timeout.
    task_timeout: float | None = _option(None, seconds(0.001, 31_536_000, none="no limit"))
    # Seconds that a body gets to stop after its timeout, before its runner is replaced.
    timeout_grace: float = _option(5.0, seconds(0.1, 3_600))
    # Seconds for which a runner may hang before its supervisor kills it, apart from time limits of bodies.
    stall_timeout: float | None = _option(None, seconds(3, 31_536_000, none="running_stale_threshold_ms"))
    # The order of queues: by each task's priority, by the queues' priorities, or by their weights.
    order: Literal["priority", "strict", "weighted"] = _option("priority", one_of("priority", "strict", "weighted"))
    reaper: bool = _option(True, BOOLEAN)
    scheduler: bool = _option(True, BOOLEAN)
    # Forked runners share the memory of imported code. Turn it off if an import starts a thread or opens a socket.
    fork: bool = _option(True, BOOLEAN)
    name: str = _option("", text("at most 100 letters, digits, '.', '_' or '-'", r"[\w.-]{0,100}"))
    # The supervisor writes it while a runner is healthy; a probe looks at its age.
    heartbeat_file: str = _option("", text("the path of a file", r"[^\x00]{0,4096}"))
    # Keeps which bodies have begun, for the case that all processes of the worker die at once.
    state_dir: str = _option("", text("the path of a directory", r"[^\x00]{0,4096}"))
    # Seconds for which bodies' connections are kept. To connect takes longer than most bodies.
    conn_max_age: float | Literal["inherit"] | None = _option(60.0, CONN_MAX_AGE)
    # Undo after each body what it has set in its sessions, for one round trip.
    reset_sessions: bool = _option(False, BOOLEAN)


@dataclass(frozen=True, slots=True)
class EmbeddedOptions:
    """The options of a worker in threads of a web process."""

    # None: only where code calls horsies_django.embedded.start().
    when: Literal["runserver"] | None = _option(None, one_of("runserver", None))
    threads: int = _option(2, integer(1, 1_000))


@dataclass(frozen=True, slots=True)
class DefaultOptions:
    """The defaults of a task's options."""

    # None: one attempt, or three if a backoff is set; see RetryPolicy for its delays.
    max_attempts: int | None = _option(None, integer(1, MAX_RETRIES + 1, none="no retries"))
    # Seconds before each retry.
    backoff: float | None = _option(None, seconds(0, MAX_INTERVAL, none="2, 4, 8 … seconds"))
    # Replaces the two above. A task with only max_attempts uses its delays.
    retry_policy: RetryPolicy | None = _option(None, RETRY_POLICY)
    # Seconds.
    timeout: float | None = _option(None, seconds(0.001, LONGEST_DURATION, none="the worker's task_timeout"))

    def rules_between_keys(self, path: str) -> Iterator[Problem]:
        """Yield a problem where two keys contradict each other."""
        if self.retry_policy is not None and (self.max_attempts, self.backoff) != (None, None):
            hint = "A policy has its own number of retries and its own delays."
            yield Problem(f"{path}['retry_policy']", self.retry_policy, "beside neither max_attempts nor backoff", hint)


@dataclass(frozen=True, slots=True)
class AttemptLogOptions:
    """Which log records of a body are kept with its output."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = _option(
        "INFO", one_of("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    )
    # Of JSON, for each attempt.
    max_bytes: int = _option(65_536, integer(1_024, 16_777_216))
    # Only those of these loggers and of the loggers below them.
    loggers: tuple[str, ...] = _option((), LOGGERS)


@dataclass(frozen=True, slots=True)
class AboutOptions:
    """What becomes of the tasks about a row of a model when the row is deleted."""

    # "cancel" also keeps a task from beginning whose row is gone, however it was deleted.
    on_delete: Literal["cancel", "keep"] = _option("cancel", one_of("cancel", "keep"))


@dataclass(frozen=True, slots=True)
class AdminOptions:
    """The options of the queue's pages in the admin."""

    # Allow only viewing, retry and cancel.
    read_only: bool = _option(False, BOOLEAN)


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """The options of the endpoints for metrics and health checks."""

    # Sent as "Authorization: Bearer TOKEN". Without one, only staff may read them.
    token: str = field(default="", metadata={"rule": METRICS_TOKEN}, repr=False)
    # Endpoints that need neither a token nor a user.
    public: tuple[str, ...] = _option((), PUBLIC_ENDPOINTS)


@dataclass(frozen=True, slots=True)
class Options:
    """The OPTIONS of one backend alias."""

    database: str = _option("default", text("an alias of DATABASES", r".+"))
    # Leads to the same database without a pooler, for LISTEN.
    listen_database: str = _option("", text("an alias of DATABASES", r".*"))
    # A replica of the database, for the lists and charts of the admin and for metrics.
    read_database: str = _option("", text("an alias of DATABASES", r".*"))
    serializer: Literal["json", "rich"] = _option("json", one_of("json", "rich"))
    queues: Mapping[str, QueueOptions] = field(default_factory=dict)
    recovery: RecoveryOptions = field(default_factory=RecoveryOptions)
    retention: RetentionOptions = field(default_factory=RetentionOptions)
    worker: WorkerOptions = field(default_factory=WorkerOptions)
    embedded: EmbeddedOptions = field(default_factory=EmbeddedOptions)
    defaults: DefaultOptions = field(default_factory=DefaultOptions)
    # By label of a model, like "shop.Order".
    about: Mapping[str, AboutOptions] = field(default_factory=dict)
    # None: no log records are kept.
    attempt_log: AttemptLogOptions | None = None
    admin: AdminOptions = field(default_factory=AdminOptions)
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    # Exception class, or its dotted path, to error code; a task's own mapper takes precedence.
    exception_mapper: Mapping[type[BaseException], str] = field(default_factory=dict, metadata={"rule": MAPPER})
    # Dotted paths, imported when a process first sends or runs a task.
    middleware: tuple[str, ...] = field(default=(), metadata={"rule": MIDDLEWARE})
    # Imported when Django starts, like tasks.py and workflows.py of each app: rows can name only registered tasks.
    modules: tuple[str, ...] = field(default=(), metadata={"rule": MODULES})
    # The version of the project's code, on each worker's row; by default a fingerprint of what is registered.
    version: str = _option("", text("at most 64 characters, no control characters", r"[^\x00-\x1f\x7f]{0,64}"))
    # Bytes of JSON. Keep larger values in a storage and pass their keys.
    max_payload_bytes: int | None = _option(16 * 1024 * 1024, integer(1_024, 250_000_000, none="no limit"))
    # Bytes of JSON that the body may write in each attempt.
    max_output_bytes: int = _option(1024 * 1024, integer(1_024, 250_000_000))
    # Separates the schedules of several projects in one database; by default the package of the settings.
    project: str = _option("", text("at most 100 letters, digits, '.', '_' or '-'", r"[\w.-]{0,100}"))
    # Seconds after which a schedule that no scheduler's code declares any more is disabled.
    disable_undeclared_schedules_after: float | None = _option(600.0, seconds(10, 31_536_000, none="never"))

    @property
    def for_reading(self) -> Options:
        """These options on the database that lists, charts and metrics read."""
        return replace(self, database=self.read_database) if self.read_database else self


#: The defaults of a project that sets none.
NO_DEFAULTS: Final = DefaultOptions()

#: The options that are dicts.
SECTIONS: Final[Mapping[str, Any]] = {
    "recovery": RecoveryOptions,
    "retention": RetentionOptions,
    "worker": WorkerOptions,
    "embedded": EmbeddedOptions,
    "defaults": DefaultOptions,
    "attempt_log": AttemptLogOptions,
    "admin": AdminOptions,
    "metrics": MetricsOptions,
}
