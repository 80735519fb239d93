"""How long ended tasks and workflows are kept: decided once, as they end, and stored with them as ``kept_until``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self, cast

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

from ..core.compat import task_backends
from ..core.option_parsers import INHERIT, LONGEST_DURATION, RETENTION_STATES, parse_retention
from ..core.options import NO_DEFAULTS, Options
from ..core.status import TASK_TERMINAL_STATES, TaskStatus

if TYPE_CHECKING:
    from ..core.task_options import Retention
    from ..models.claims import ClaimedTask

#: What a row stores that is to be kept for ever; NULL says that its queue and its backend decide.
LONGEST: Final = timedelta(seconds=LONGEST_DURATION)

_COMPLETED: Final = RETENTION_STATES[0]


def stored_retention(value: object, default: Mapping[str, timedelta | None] = NO_DEFAULTS.retention) -> dict[str, Any]:
    """Return the columns of a row for the option ``retention``; ``default`` counts for a state that it does not say.

    Completed tasks have a column of their own: thousands of them end each second. Raises ValueError.
    """
    kept = {state: _finite(duration) for state, duration in {**default, **parse_retention(value)}.items()}
    completed = kept.pop(_COMPLETED, None)
    by_state = {state: duration.total_seconds() for state, duration in kept.items()} or None
    return {"retention": completed, "retention_by_state": by_state}


def read_retention(stored: timedelta | None, by_state: object) -> Retention:
    """Return the option that :func:`stored_retention` has stored. What may not stand in a row is not in it."""
    kept = retention_of(stored, by_state)
    said = {state: duration if duration < LONGEST else None for state, duration in kept.items()}
    return said.get(_COMPLETED, INHERIT) if said.keys() <= {_COMPLETED} else said


def retention_of(stored: timedelta | None, by_state: object) -> dict[str, timedelta]:
    """Return how long a row says that tasks are kept, by state; the longest is for ever."""
    kept = {} if stored is None else {_COMPLETED: stored}
    said = by_state if isinstance(by_state, Mapping) else {}
    for state in RETENTION_STATES[1:]:
        seconds = said.get(state)
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= LONGEST_DURATION:
            kept[state] = timedelta(seconds=seconds)
    return kept


def kept_until(status: TaskStatus, database: str) -> Expression:
    """Return the value of ``kept_until`` for rows, of whatever queues and backends, that end in ``status``.

    The row's own retention counts first, then that of its queue's row, then of its queue's settings, then its backend's
    for that state. What queues' rows say of successes a worker has learned: there are thousands of those a second, and
    none of what is read for one is JSON.
    """
    learned = _learned.get(database) if status == TaskStatus.COMPLETED else None
    return _settings(database).until[status] if learned is None else learned.until


def workflow_kept_until(status: str, database: str) -> Expression:
    """Return the value of ``kept_until`` for workflows that end in ``status``: as the backend of each says.

    Subworkflows have none: they go with the workflow above them.
    """
    until = _settings(database).workflow_until[TaskStatus(status)]
    return Case(When(depth=0, then=until), output_field=DateTimeField())


def may_go_at_once(ends: Iterable[tuple[ClaimedTask, TaskStatus]], database: str) -> bool:
    """Whether any of these tasks may have to be deleted by the worker that ended it, for its retention is 0 (S2-10).

    What its row, or its queue's, says of failures was not read: the reaper goes by that.
    """
    settings, learned = _settings(database), _learned.get(database)
    rows = learned.queues if learned else {}

    def may_go(claim: ClaimedTask, status: TaskStatus) -> bool:
        said = None
        if status == TaskStatus.COMPLETED:
            said = rows.get(claim.queue_name) if claim.retention is None else claim.retention
        return settings.may_go(status, claim.backend, claim.queue_name) if said is None else not said

    return any(may_go(claim, status) for claim, status in ends)


def learn(database: str, queues: Mapping[str, timedelta]) -> bool:
    """Go by what rows of queues say from now on, in this process; return whether it is anything new."""
    known = _learned.get(database)
    if queues == (known.queues if known else {}):
        return False
    _learned.pop(database, None)
    if queues:
        cases = [When(queue_name=name, then=_value(kept)) for name, kept in queues.items()]
        said = ["retention", Case(*cases, output_field=DurationField())]
        until = _until(TaskStatus.COMPLETED, dict(_options(database)), said)
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


class _OfState(Func):
    """What a ``retention_by_state`` says of one state; NULL for anything but a number in range, whatever is stored."""

    output_field = DurationField()

    def __init__(self, status: TaskStatus) -> None:
        super().__init__(F("retention_by_state"), key=status.lower())

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """A path is silent about wrong types, and its numbers have no limits: the cast is of one in range."""
        path = f"'strict $.%(key)s ? (@ >= 0 && @ <= {LONGEST_DURATION})'"
        found = f"jsonb_path_query_first(%(expressions)s, {path}, '{{}}', true)"
        return self.as_sql(compiler, connection, template=f"make_interval(secs => ({found})::float8)")

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        """A text is above any number there, and to read what is no JSON would be an error."""
        value = "JSON_EXTRACT(%(expressions)s, '$.%(key)s')"
        is_number = "JSON_TYPE(%(expressions)s, '$.%(key)s') IN ('integer', 'real')"
        seconds = f"CASE WHEN {is_number} AND {value} BETWEEN 0 AND {LONGEST_DURATION} THEN {value} END"
        template = f"CASE WHEN JSON_VALID(%(expressions)s) THEN CAST(ROUND(({seconds}) * 1e6) AS INTEGER) END"
        return self.as_sql(compiler, connection, template=template)


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
    #: By state, backend and name, for each queue with a say of its own: whether it deletes tasks at once.
    queues: Mapping[tuple[TaskStatus, str, str], bool]
    #: The states and backends that delete nothing at once.
    keeping: frozenset[tuple[TaskStatus, str]]

    @classmethod
    def of(cls, backends: Mapping[str, Options], database: str) -> Self:
        queues = {
            (status, alias, name): queue.retention[status.lower()] == timedelta()
            for status in TASK_TERMINAL_STATES
            for alias, options in backends.items()
            for name, queue in options.queues.items()
            if status.lower() in queue.retention
        }
        keeping = {
            (status, alias)
            for status in TASK_TERMINAL_STATES
            for alias, options in backends.items()
            if options.retention.kept(status) != timedelta()
        }
        until = {
            status: _until(status, backends, [_OfState(status), _of_row(status, database)])
            for status in TASK_TERMINAL_STATES
        }
        until[TaskStatus.COMPLETED] = _until(TaskStatus.COMPLETED, backends, ["retention"])
        workflow_until = {status: _workflow_until(status, backends) for status in TASK_TERMINAL_STATES}
        return cls(until, workflow_until, queues, frozenset(keeping))

    def may_go(self, status: TaskStatus, backend: str, queue_name: str) -> bool:
        """Whether a task of that queue may have to be deleted at once, if it does not say itself."""
        own = self.queues.get((status, backend, queue_name)) if self.queues else None
        return (status, backend) not in self.keeping if own is None else own


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


def _of_row(status: TaskStatus, database: str) -> Subquery:
    """Return what the row of a task's queue says of a state other than success."""
    from ..models.queue import Queue

    rows = Queue.objects.using(database).filter(name=OuterRef("queue_name"))
    return Subquery(rows.values(kept=_OfState(status))[:1], output_field=DurationField())


def _until(status: TaskStatus, backends: Mapping[str, Options], said: Sequence[Any]) -> _Later:
    """Return the expression for one state; ``said`` is what the row of a task and that of its queue say.

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
    if cases:
        return _Later(Coalesce(*said, Case(*cases, default=_value(first))))
    if len(said) == 1 and first is None:
        return _Later(*said)
    return _Later(Coalesce(*said, _value(first)))


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
