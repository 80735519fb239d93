"""Builds the columns of a call: checks its arguments, encodes them as JSON and reads the task's options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db.models import BooleanField, Case, DateTimeField, Value, When
from django.db.models.functions import Greatest
from django.db.models.lookups import GreaterThan

from ..core import headers, type_check
from ..core.compat import FrameworkTask
from ..core.limits import terms_of
from ..core.mask import BY_NAME, Mask
from ..core.options import Options
from ..core.parameters import parameters_of
from ..core.registry import registry
from ..core.retention import stored_retention
from ..core.retry import NO_RETRIES, RetryPolicy
from ..core.serialization import check_size, dumps, encode
from ..core.unique import Unique, UniqueUntil
from ..db import notifications
from ..db.expressions import NowPlus
from ..db.notifications import TaskReady
from ..db.now import Now
from ..db.statements import Statement
from . import call_keys
from .task import HorsiesTask

#: The retry policy of a delayed call. Before it joins a group nothing of it has run, so a retry is always safe.
_RETRY: Final = RetryPolicy.fixed([1.0] * 10, auto_retry_for=["*"])

#: The columns of a delayed call with ``gather``: until it joins a group, it is a task with its own arguments.
DELAYED_COLUMNS: Final[Mapping[str, Any]] = {
    "has_inputs": True,
    "is_async": False,
    "max_retries": _RETRY.max_retries,
    "retry_policy": _RETRY.as_json(),
}

#: Types whose values need no encoding.
_STORED_AS_IS: Final[frozenset[type]] = frozenset({int, bool, type(None)})

#: These types, and strings whose JSON has only plain characters.
_PLAIN_TYPES: Final[frozenset[type]] = _STORED_AS_IS | {str}

#: Maximum sets of argument names and types that are remembered for a task.
_MAX_SHAPES: Final = 64


class Arguments(NamedTuple):
    """The arguments of a call, encoded as JSON, as values and as the text of the two columns, and its keys."""

    args: list[Any]
    kwargs: dict[str, Any]
    args_text: str
    kwargs_text: str
    limit_key: str | None = None
    unique_key: str | None = None


class Target:
    """A function that rows name. Caches what all its calls have in common, such as its parameters and type hints."""

    def __init__(self, options: Options, func: Callable[..., Any], path: str, *, takes_context: bool = False) -> None:
        self.func = func
        self.path = path
        self.parameters = parameters_of(func, takes_context)
        self.rules = type_check.rules_of(func)
        self.mask = BY_NAME
        self._plain_shapes: set[Hashable] = set()
        self._typed = options.serializer == "rich"
        self._limit = options.max_payload_bytes

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments of a call.

        Raises TypeError for arguments that the function does not take or that its type hints exclude, and TypeError
        or ValueError for a value that can't be stored; each names the parameter. Raises ValueError if the arguments
        have more than ``max_payload_bytes`` bytes.
        """
        parameters = self.parameters
        names: Sequence[str] = parameters.positional[: len(args)]
        # Most calls pass this test, which takes a tenth of the time of Signature.bind().
        if not (
            len(names) == len(args)
            and type(kwargs) is dict
            and kwargs.keys().isdisjoint(names)
            and kwargs.keys() <= parameters.by_name
            and parameters.required <= kwargs.keys() | names
        ):
            names = parameters.bind(args, kwargs, self.path)
        return self._encode_all(names, args, kwargs)

    def plain_text(self, kwargs: Mapping[str, Any], *, write: Callable[[Any], str] = dumps) -> str | None:
        """Return the JSON text of keyword arguments that need no encoding; None for those that need the full check.

        Most calls of a large send are of this kind: this takes a third of the time of :meth:`arguments`.
        """
        if type(kwargs) is not dict:
            return None
        shape = (*kwargs, *map(type, kwargs.values()))
        if shape not in self._plain_shapes and not self._is_plain(kwargs, shape):
            return None
        try:
            text = write(kwargs)
        except ValueError:  # an integer with too many digits
            return None
        # Other characters are checked: a NUL or a lone surrogate among them can't be stored.
        is_checked = text.isascii() and "\\u" not in text
        return text if is_checked and (self._limit is None or len(text) * 4 <= self._limit) else None

    def _is_plain(self, kwargs: dict[Any, Any], shape: Hashable) -> bool:
        """Whether arguments of these types fit the function and need no encoding. Remembers the shape if so."""
        if not self.parameters.accept(kwargs.keys()):
            return False
        for name, value in kwargs.items():
            rule = self.rules.get(name)
            if type(value) not in _PLAIN_TYPES or (rule is not None and type(value) not in rule.accepted_types):
                return False
        if len(self._plain_shapes) < _MAX_SHAPES:
            self._plain_shapes.add(shape)
        return True

    def partial_arguments(self, kwargs: Mapping[str, Any], later: Set[str]) -> Arguments:
        """Return the arguments of a call whose parameters ``later`` get their values at run time. Raises as above."""
        if not self.parameters.accept(kwargs.keys() | later if later else kwargs.keys()):
            self.parameters.bind((), {**kwargs, **dict.fromkeys(later)}, self.path)
        return self._encode_all((), (), kwargs)

    def item(self, kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments of a call that becomes an item of a group. Their names are not checked.

        Raises TypeError or ValueError for a value that can't be stored.
        """
        named = {
            encode(name, typed=False, where=f"argument name {name!r}"): self._encode(value, name)
            for name, value in kwargs.items()
        }
        return self._dump([], [], named)

    def _encode_all(self, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        rules = self.rules
        for name, value in (*zip(names, args, strict=True), *kwargs.items()):
            rule = rules.get(name)
            if rule is not None and type(value) not in rule.accepted_types and not rule.test(value):
                mismatches = "; ".join(type_check.mismatches(self.func, names, args, kwargs, self.mask))
                raise TypeError(f"{self.path}: {mismatches}.")
        positional = [
            value if type(value) in _STORED_AS_IS else self._encode(value, name)
            for name, value in zip(names, args, strict=True)
        ]
        named = {}
        for name, value in kwargs.items():
            if name not in self.parameters.by_name:
                name = encode(name, typed=False, where=f"argument name {name!r}")
            named[name] = self._encode(value, name)
        return self._dump(names, positional, named)

    def bound(self, arguments: Arguments) -> dict[str, Any]:
        """Return the arguments of a call by parameter name, including defaults.

        Raises TypeError or ValueError, naming the parameter, for a default that can't be stored.
        """
        context = (None,) if self.parameters.takes_context else ()
        bound = self.parameters.signature.bind(*context, *arguments.args, **arguments.kwargs)
        names = set(bound.arguments)
        bound.apply_defaults()
        values = {name: bound.arguments[name] for name in self.parameters.own}
        return {name: value if name in names else self._encode(value, name) for name, value in values.items()}

    def mismatch(self, name: str, value: Any) -> str | None:
        """Return a clause for an error message if the value contradicts the parameter's type hint, else None."""
        return next(type_check.mismatches(self.func, (), (), {name: value}, self.mask), None)

    def check(self, value: Any, name: str) -> None:
        """Raise TypeError or ValueError, naming the parameter, for a value that can't be stored."""
        self._dump([], [], {name: self._encode(value, name)})

    def _encode(self, value: Any, name: str) -> Any:
        if type(value) in _STORED_AS_IS:
            return value
        where = f"argument {name!r}"
        try:
            return encode(value, typed=self._typed, where=where)
        except ValueError as error:
            if where in str(error):
                raise
            raise ValueError(f"Unsupported value: {where} can't be written as JSON: {error}") from error

    def _dump(self, names: Sequence[str], positional: list[Any], named: dict[str, Any]) -> Arguments:
        try:
            texts = dumps(positional) if positional else "[]", dumps(named) if named else "{}"
        except (ValueError, RecursionError) as error:
            raise self._dump_error(error, names, positional, named) from error
        if self._limit is not None and (len(texts[0]) + len(texts[1])) * 4 > self._limit:
            check_size("".join(texts), self._limit, f"the payload of {self.path}")
        return Arguments(positional, named, *texts)

    def _dump_error(
        self, error: Exception, names: Sequence[str], positional: Sequence[Any], named: Mapping[str, Any]
    ) -> ValueError:
        """Return an error that names the argument which the JSON encoder rejects."""
        for name, value in (*zip(names, positional, strict=True), *named.items()):
            where = f"Unsupported value: argument {name!r}"
            try:
                dumps(value)
            except RecursionError:
                return ValueError(f"{where} is nested too deeply.")
            except ValueError as reason:
                return ValueError(f"{where} can't be written as JSON: {reason}")
        return ValueError(f"Unsupported value: the arguments of {self.path}: {error}")


class CallBuilder(Target):
    """Builds the calls of one task."""

    def __init__(self, options: Options, task: HorsiesTask[..., Any]) -> None:
        super().__init__(options, task.func, task.task_name, takes_context=task.takes_context)
        self.task = task
        self.is_limited = bool(terms_of(task))
        #: Whether the task was found valid with these options.
        self.is_valid = False
        #: The task of the framework's results, if it is the same for all calls (see :mod:`~.django_result`).
        self.result_task: FrameworkTask[..., Any] | None = None
        self._options = options
        self.mask = Mask(sensitive=task.sensitive)
        #: The statements of the task's calls, see :mod:`~.insert`; None for one that was used once.
        self.inserts: dict[Hashable, Statement | None] = {}

    @classmethod
    def of(cls, task: HorsiesTask[..., Any], options: Options) -> CallBuilder:
        """Return the builder of a task's calls; a cached one unless the task has metadata or is about a row."""
        if task.metadata is not None or task.about_row is not None:  # a mutable dict; few calls are about the same row
            return cls(options, task)
        key = id(task), id(options)  # comparing all options of two tasks would take longer than a send
        builder = _builders.get(key)
        if builder is None or builder.task is not task or builder._options is not options:
            if len(_builders) >= _MAX_BUILDERS:
                _builders.clear()
            builder = _builders[key] = cls(options, task)
        return builder

    @functools.cached_property
    def has_fixed_options(self) -> bool:
        """Whether all calls have the options of the task: their rows differ in id, time and arguments alone."""
        task = self.task
        own = (task.run_after, task.metadata, task.unique, task.unique_key, task.task_id, task.gather, task.about_row)
        return all(option is None for option in own) and not self._options.middleware

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments of a call, with its keys. Raises the errors of :mod:`~.call_keys` too."""
        task = self.task
        if task.gather is not None:
            return call_keys.grouped_call(self, args, kwargs)[0]
        arguments = self.arguments(args, kwargs)
        if self.is_limited:
            arguments = arguments._replace(limit_key=call_keys.limit_key_of(task, self.parameters, args, kwargs))
        if task.unique is not None:
            key = task.unique_key or call_keys.unique_key_of(self, arguments, args, kwargs)
            arguments = arguments._replace(unique_key=key)
        return arguments

    def partial_limit_key(self, kwargs: Mapping[str, Any], later: Set[str]) -> str | None:
        """Return the limit key of a call whose parameters ``later`` get their values at run time; None without a limit.

        Raises the errors of :func:`~.call_keys.partial_limit_key`.
        """
        return call_keys.partial_limit_key(self.task, self.parameters, kwargs, later) if self.is_limited else None

    @functools.cached_property
    def columns(self) -> Mapping[str, Any]:
        """The columns that all calls of the task share, unless they have the model's default."""
        task = self.task
        registry.warn_if_late(self.path)
        defaults = self._options.defaults
        policy = task.stored_policy(defaults)
        columns = {
            "task_name": self.path,
            "queue_name": task.queue_name,
            "backend": task.backend,
            "priority": int(task.priority),
            "typed_payload": self._typed,
            "is_async": inspect.iscoroutinefunction(task.func),
            "max_retries": policy.max_retries if policy else 0,
            "retry_policy": policy.as_json() if policy else NO_RETRIES if task.max_attempts == 1 else None,
            "timeout": defaults.timeout if task.timeout is None else task.timeout,
            **stored_retention(task.retention),
            "unique_key": task.unique_key,
            "good_until": task.good_until,
            "metadata": None if task.metadata is None else headers.encode_metadata(task.metadata, self._options),
        }
        if task.gather is not None and task.run_after is not None:
            columns |= DELAYED_COLUMNS
        if task.about_row is not None:
            columns |= {"about_model": task.about_row.model, "about_id": task.about_row.key}
        if task.unique is not None:
            columns |= _unique_columns(task.unique, task.run_after)
        debounce = None if task.unique is None else task.unique.delay
        return columns | _time_columns(task.run_after if debounce is None else debounce)

    @functools.cached_property
    def times(self) -> Sequence[str]:
        """The columns of times that the database sets and the framework's result has."""
        return ("sent_at", "run_after") if "run_after" in self.columns else ("sent_at",)

    @functools.cached_property
    def notification(self) -> str:
        """The payload that wakes workers for a new row."""
        return TaskReady(self.columns["queue_name"], self.is_deferred, self.columns["is_async"]).dumps()

    def wake_after_commit(self, database: str) -> None:
        """Wake workers for new rows of these calls once the current transaction has committed."""
        notifications.notify_after_commit(database, self.notification)

    @property
    def is_deferred(self) -> bool:
        """Whether the calls have a time to wait for. It may have passed: a worker finds that out."""
        return self.columns.get("deferred", False) is not False

    def own_columns(self, arguments: Arguments) -> dict[str, Any]:
        """Return the columns of the keys of a call."""
        own: dict[str, Any] = {}
        if arguments.limit_key is not None:
            # A deferred call is not blocked before it is due.
            own = {"limit_key": arguments.limit_key, "deferred": True, "blocked": not self.is_deferred}
        return own if arguments.unique_key is None else {**own, "unique_key": arguments.unique_key}


#: The builders of tasks that were sent, by the identity of task and options. They keep both alive.
_builders: Final[dict[tuple[int, int], CallBuilder]] = {}
_MAX_BUILDERS: Final = 256


def forget_builders() -> None:
    """Forget the builders, which keep compiled statements."""
    _builders.clear()


def _time_columns(run_after: datetime | timedelta | None) -> dict[str, Any]:
    if run_after is None:
        return {}
    if isinstance(run_after, timedelta):
        due = NowPlus(run_after.total_seconds())
        return {"enqueued_at": due, "run_after": due, "deferred": run_after > timedelta()}
    # The database's clock decides whether the call is due already.
    is_later = GreaterThan(Value(run_after, DateTimeField()), Now())
    deferred = Case(When(is_later, then=True), default=False, output_field=BooleanField())
    return {"enqueued_at": run_after, "run_after": run_after, "deferred": deferred}


def _unique_columns(unique: Unique, run_after: datetime | timedelta | None) -> dict[str, Any]:
    """Return the columns that say until when a call holds its unique key. ``run_after`` is when it is due."""
    expires_at: Any = None
    if isinstance(period := unique.period, timedelta):
        if isinstance(run_after, datetime):
            expires_at = Greatest(NowPlus(period.total_seconds()), Value(run_after + period, DateTimeField()))
        else:
            expires_at = NowPlus((period + (run_after or timedelta())).total_seconds())
    return {"unique_until": UniqueUntil(unique.until or UniqueUntil.DONE).value, "unique_expires_at": expires_at}
