"""A call, before it is a row: its arguments checked and in JSON, and the options it is made with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db.models import BooleanField, Case, DateTimeField, Value, When
from django.db.models.functions import Now
from django.db.models.lookups import GreaterThan

from . import hints
from .conf import Options
from .expressions import FromNow
from .inserts import Insert
from .retention import stored_retention
from .serializers import check_size, dumps, encode
from .tasks import HorsiesTask

#: Types of values that are JSON already, whatever the value.
_AS_THEY_ARE: Final = frozenset({int, bool, type(None)})


class Arguments(NamedTuple):
    """The arguments of a call as JSON has them: as values, and as the texts of the two columns."""

    args: list[Any]
    kwargs: dict[str, Any]
    args_text: str
    kwargs_text: str


class Calls:
    """Calls of one task: what they have in common is found out once."""

    def __init__(self, task: HorsiesTask[..., Any], *, rich: bool, limit: int | None) -> None:
        self._task = task
        self._rich = rich
        self._limit = limit
        self._parameters = _parameters(task.func, task.takes_context)
        self._rules = hints.rules_of(task.func)
        self._inserts: dict[Hashable, Insert | None] = {}

    @classmethod
    def of(cls, task: HorsiesTask[..., Any], options: Options) -> Calls:
        """Return the calls of a task, the same ones as the last time if nothing can have changed since."""
        rich = options.serializer == "rich"
        if task.metadata is not None:  # a dict, which its owner may change
            return cls(task, rich=rich, limit=options.max_payload_bytes)
        return _kept(_Itself(task), rich, options.max_payload_bytes)

    def insert(self, key: Hashable, make: Callable[[], Insert]) -> Insert | None:
        """Return an INSERT to be used again and again; None the first time, for many a task is made for one call."""
        if key not in self._inserts:
            self._inserts[key] = None
            return None
        if (found := self._inserts[key]) is None:
            found = self._inserts[key] = make()
        return found

    @functools.cached_property
    def columns(self) -> Mapping[str, Any]:
        """The values of the row's columns, beside its arguments, that are not the model's defaults."""
        task = self._task
        policy = task.stored_policy()
        columns = {
            "task_name": task.module_path,
            "queue_name": task.queue_name,
            "backend": task.backend,
            "priority": int(task.priority),
            "rich": self._rich,
            "is_async": inspect.iscoroutinefunction(task.func),
            "max_retries": policy.max_retries if policy else 0,
            "retry_policy": policy.as_json() if policy else None,
            "timeout": task.timeout,
            "retention": stored_retention(task.retention),
            "unique_key": task.unique_key,
            "good_until": task.good_until,
            "metadata": None if task.metadata is None else encode(task.metadata, rich=False, where="metadata"),
        }
        return columns | _times(task.run_after)

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments of a call.

        Raises TypeError for arguments that the function does not take or that its type hints rule out, and TypeError
        or ValueError for a value that can't be stored; each names the parameter. Raises ValueError for more bytes than
        ``max_payload_bytes``.
        """
        parameters = self._parameters
        if args or type(kwargs) is not dict or not parameters.take(kwargs):
            names = parameters.names(args, kwargs, self._task.module_path)
        else:
            names = []
        if self._rules and not hints.fit(self._rules, names, args, kwargs):
            mismatches = "; ".join(hints.mismatches(self._task.func, names, args, kwargs))
            raise TypeError(f"{self._task.module_path}: {mismatches}.")
        positional = [self._encoded(value, name) for name, value in zip(names, args, strict=True)] if args else []
        named = {}
        for name, value in kwargs.items():
            if name not in parameters.by_name:
                name = encode(name, rich=False, where=f"argument name {name!r}")
            named[name] = self._encoded(value, name)
        return self._written(names, positional, named)

    def _written(self, names: Sequence[str], positional: list[Any], named: dict[str, Any]) -> Arguments:
        try:
            texts = dumps(positional) if positional else "[]", dumps(named) if named else "{}"
        except (ValueError, RecursionError) as error:
            raise self._unwritable(error, names, positional, named) from error
        if self._limit is not None and (len(texts[0]) + len(texts[1])) * 4 > self._limit:
            check_size("".join(texts), self._limit, f"the payload of {self._task.module_path}")
        return Arguments(positional, named, *texts)

    def _encoded(self, value: Any, name: str) -> Any:
        if type(value) in _AS_THEY_ARE:
            return value
        where = f"argument {name!r}"
        try:
            return encode(value, rich=self._rich, where=where)
        except RecursionError:
            raise ValueError(f"Unsupported value: {where} is nested too deeply.") from None
        except ValueError as error:
            if where in str(error):
                raise
            raise ValueError(f"Unsupported value: {where} can't be written as JSON: {error}") from error

    def _unwritable(
        self, error: Exception, names: Sequence[str], positional: Sequence[Any], named: Mapping[str, Any]
    ) -> ValueError:
        """Return an error that names the argument which JSON's own encoder refuses."""
        for name, value in (*zip(names, positional, strict=True), *named.items()):
            where = f"Unsupported value: argument {name!r}"
            try:
                dumps(value)
            except RecursionError:
                return ValueError(f"{where} is nested too deeply.")
            except ValueError as found:
                return ValueError(f"{where} can't be written as JSON: {found}")
        return ValueError(f"Unsupported value: the arguments of {self._task.module_path}: {error}")


class _Itself:
    """A task as a key: the very object, for to compare all of its options takes longer than to send it."""

    __slots__ = ("task",)

    def __init__(self, task: HorsiesTask[..., Any]) -> None:
        self.task = task

    def __hash__(self) -> int:
        return id(self.task)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.task is other.task


@functools.lru_cache(maxsize=256)
def _kept(itself: _Itself, rich: bool, limit: int | None) -> Calls:  # a key
    return Calls(itself.task, rich=rich, limit=limit)


def _times(run_after: datetime | timedelta | None) -> dict[str, Any]:
    if run_after is None:
        return {}
    if isinstance(run_after, timedelta):
        due = FromNow(run_after.total_seconds())
        return {"enqueued_at": due, "run_after": due, "deferred": run_after > timedelta()}
    # Whether it is due already is for the database's clock to say.
    is_later = GreaterThan(Value(run_after, DateTimeField()), Now())
    deferred = Case(When(is_later, then=True), default=False, output_field=BooleanField())
    return {"enqueued_at": run_after, "run_after": run_after, "deferred": deferred}


@dataclass(frozen=True, slots=True)
class _Parameters:
    """The parameters of a function, without the context."""

    signature: inspect.Signature
    takes_context: bool
    by_name: frozenset[str]
    required: frozenset[str]

    def take(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether a call with these arguments alone is surely right."""
        return kwargs.keys() <= self.by_name and self.required <= kwargs.keys()

    def names(self, args: Sequence[Any], kwargs: Mapping[str, Any], path: str) -> list[str]:
        """Return the names of the parameters that take ``args``. Raises TypeError naming what is wrong."""
        context = (None,) if self.takes_context else ()
        try:
            self.signature.bind(*context, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{path}{self.signature}: {error}.") from None
        names: list[str] = []
        for parameter in list(self.signature.parameters.values())[len(context) :]:
            if parameter.kind is parameter.VAR_POSITIONAL:
                names += [f"{parameter.name}[{index}]" for index in range(len(args) - len(names))]
            if len(names) >= len(args):
                break
            names.append(parameter.name)
        return names[: len(args)]


@functools.cache
def _parameters(func: Callable[..., Any], takes_context: bool) -> _Parameters:
    signature = inspect.signature(func)
    own = list(signature.parameters.values())[int(takes_context) :]
    by_name = frozenset(one.name for one in own if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))
    plain = [one for one in own if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    required = frozenset(one.name for one in plain if one.default is one.empty)
    return _Parameters(signature, takes_context, by_name, required)
