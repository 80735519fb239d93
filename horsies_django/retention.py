"""How long ended tasks and workflows are kept: decided once, as they end, and stored with them as ``kept_until``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import (
    Case,
    DateTimeField,
    DurationField,
    Expression,
    F,
    Func,
    OuterRef,
    Subquery,
    Value,
    When,
)
from django.db.models.functions import Coalesce
from django.db.models.sql.compiler import SQLCompiler

from .bounds import RETENTION, within
from .compat import task_backends
from .conf import Options
from .option_rules import DURATION_ALLOWED, INHERIT, LONGEST_DURATION, parse_duration
from .states import TASK_TERMINAL_STATES, TaskStatus

if TYPE_CHECKING:
    from .models.claims import ClaimedTask

#: What a row stores that is to be kept for ever; NULL says that its queue and its backend decide.
LONGEST: Final = timedelta(seconds=LONGEST_DURATION)


def stored_retention(value: object) -> timedelta | None:
    """Return what the row of a call stores for the option ``retention``. Raises ValueError."""
    if isinstance(value, str) and value == INHERIT:
        return None
    try:
        return _finite(parse_duration(value))
    except ValueError:
        raise ValueError(f"{value!r} is not a duration; allowed: {DURATION_ALLOWED} or {INHERIT!r}.") from None


def read_retention(stored: timedelta | None) -> timedelta | Literal["inherit"] | None:
    """Return the option that :func:`stored_retention` has stored."""
    if stored is None:
        return INHERIT
    return stored if stored < LONGEST else None


def kept_until(status: TaskStatus, database: str) -> Expression:
    """Return the value of ``kept_until`` for rows, of whatever queues and backends, that end in ``status``.

    The row's own retention counts first, then that of its queue's row, then of its queue's settings, then its backend's
    for that state. What queues' rows say of successes a worker has learned: there are thousands of those a second.
    """
    learned = _learned.get(database) if status == TaskStatus.COMPLETED else None
    return _settings(database).until[status] if learned is None else learned.until


def workflow_kept_until(status: str, database: str) -> Expression:
    """Return the value of ``kept_until`` for workflows that end in ``status``: as the backend of each says.

    Subworkflows have none: they go with the workflow above them.
    """
    until = _settings(database).workflow_until[TaskStatus(status)]
    return Case(When(depth=0, then=until), output_field=DateTimeField())


def may_go_at_once(claims: Iterable[ClaimedTask], database: str) -> bool:
    """Whether any of these tasks may have to be deleted by whoever ends it, for its retention is 0 (S2-10)."""
    settings, learned = _settings(database), _learned.get(database)
    rows = learned.queues if learned else {}

    def may_go(claim: ClaimedTask) -> bool:
        said = rows.get(claim.queue_name) if claim.retention is None else claim.retention
        return settings.may_go(claim.backend, claim.queue_name) if said is None else not said

    return any(map(may_go, claims))


def learn(database: str, queues: Mapping[str, timedelta]) -> bool:
    """Go by what rows of queues say from now on, in this process; return whether it is anything new."""
    known = _learned.get(database)
    if queues == (known.queues if known else {}):
        return False
    _learned.pop(database, None)
    if queues:
        cases = [When(queue_name=name, then=_value(kept)) for name, kept in queues.items()]
        until = _until(TaskStatus.COMPLETED, dict(_options(database)), Case(*cases, output_field=DurationField()))
        _learned[database] = _Learned(dict(queues), until)
    return True


class _Later(Func):
    """The database's clock plus a duration that may differ from row to row; NULL if that is NULL or the longest."""

    output_field = DateTimeField()

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """``LEAST`` passes over NULL, and gives the longest then."""
        longest = f"INTERVAL '{LONGEST.days} days'"
        template = f"(STATEMENT_TIMESTAMP() + NULLIF(LEAST(%(expressions)s, {longest}), {longest}))"
        return self.as_sql(compiler, connection, template=template)

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        """A duration is a number of microseconds; the text form is the one that Django's own Now() has there."""
        seconds = f"(NULLIF(MIN(%(expressions)s, {_MICROSECONDS}), {_MICROSECONDS}) / 1e6) || ' seconds'"
        template = f"STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', 'NOW', {seconds})"
        return self.as_sql(compiler, connection, template=template)


_MICROSECONDS: Final = LONGEST_DURATION * 1_000_000


@dataclass(frozen=True, slots=True)
class _Learned:
    """What rows of queues say, by name, and what that comes to for successes."""

    queues: Mapping[str, timedelta]
    until: Expression


#: By the alias of the database.
_learned: Final[dict[str, _Learned]] = {}


@dataclass(frozen=True, slots=True)
class _Settings:
    """What the settings of all backends on one database come to."""

    until: Mapping[TaskStatus, Expression]
    workflow_until: Mapping[TaskStatus, Expression]
    #: For each queue with a say of its own, whether it deletes tasks of any state at once.
    queues: Mapping[tuple[str, str], bool]
    #: The backends that delete nothing at once.
    keeping: frozenset[str]

    @classmethod
    def of(cls, backends: Mapping[str, Options], database: str) -> Self:
        queues = {
            (alias, name): any(queue.kept(state, inherited) == timedelta() for state, inherited in _by_state(options))
            for alias, options in backends.items()
            for name, queue in options.queues.items()
            if queue.retention != INHERIT
        }
        keeping = {
            alias for alias, options in backends.items() if all(kept != timedelta() for _, kept in _by_state(options))
        }
        until = {status: _until(status, backends, _of_row(database)) for status in TASK_TERMINAL_STATES}
        until[TaskStatus.COMPLETED] = _until(TaskStatus.COMPLETED, backends)
        workflow_until = {status: _workflow_until(status, backends) for status in TASK_TERMINAL_STATES}
        return cls(until, workflow_until, queues, frozenset(keeping))

    def may_go(self, backend: str, queue_name: str) -> bool:
        """Whether a task of that queue may have to be deleted at once, if it does not say itself."""
        own = self.queues.get((backend, queue_name)) if self.queues else None
        return backend not in self.keeping if own is None else own


def _settings(database: str) -> _Settings:
    """Return what the settings say; kept on a backend object, which Django makes anew when they change."""
    from .backend import HorsiesBackend

    for alias in task_backends:
        backend = task_backends[alias]
        if isinstance(backend, HorsiesBackend) and backend.config.database == database:
            attributes = vars(backend)
            if "retention_settings" not in attributes:
                attributes["retention_settings"] = _Settings.of(dict(_options(database)), database)
            return cast("_Settings", attributes["retention_settings"])
    return _Settings.of({}, database)


def _options(database: str) -> Iterator[tuple[str, Options]]:
    from .backend import HorsiesBackend

    for alias in task_backends:
        backend = task_backends[alias]
        if isinstance(backend, HorsiesBackend) and backend.config.database == database:
            yield alias, backend.config


def _by_state(options: Options) -> Iterator[tuple[str, timedelta | None]]:
    for status in TASK_TERMINAL_STATES:
        yield status, options.retention.kept(status)


def _of_row(database: str) -> Subquery:
    """Return what the row of a task's queue says; nothing if that is out of range."""
    from .models.queue import Queue

    rows = Queue.objects.using(database).filter(within((), {"retention": RETENTION}), name=OuterRef("queue_name"))
    return Subquery(rows.values("retention")[:1])


def _until(status: TaskStatus, backends: Mapping[str, Options], of_row: Any = None) -> _Later:
    """Return the expression for one state; ``of_row`` is what the row of a task's queue says.

    Rows of a backend that is in the settings no more go by the first one's.
    """
    cases: list[When] = []
    first: timedelta | None = None
    for number, (alias, options) in enumerate(backends.items()):
        own = options.retention.kept(status)
        if number == 0:
            first = own
        is_its = {"backend": alias} if len(backends) > 1 else {}
        for name, queue in options.queues.items():
            if (kept := queue.kept(status, own)) != own:
                cases.append(When(**is_its, queue_name=name, then=_value(kept)))
        if own != first:
            cases.append(When(**is_its, then=_value(own)))
    said: list[Any] = ["retention"] if of_row is None else ["retention", of_row]
    if cases:
        return _Later(Coalesce(*said, Case(*cases, default=_value(first))))
    if of_row is not None:
        return _Later(Coalesce(*said, _value(first)))
    return _Later(F("retention") if first is None else Coalesce("retention", _value(first)))


def _workflow_until(status: TaskStatus, backends: Mapping[str, Options]) -> _Later:
    """Return the expression for the workflows that end in one state, which say nothing themselves."""
    kept = {alias: options.retention.kept(status) for alias, options in backends.items()}
    first = next(iter(kept.values()), None)
    cases = [When(backend=alias, then=_value(own)) for alias, own in kept.items() if own != first]
    return _Later(Case(*cases, default=_value(first)) if cases else _value(first))


def _value(kept: timedelta | None) -> Value:
    return Value(_finite(kept), DurationField())


def _finite(kept: timedelta | None) -> timedelta:
    return LONGEST if kept is None else min(kept, LONGEST)
