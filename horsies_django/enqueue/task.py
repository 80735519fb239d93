"""``@task``, and the task it makes of a function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, Literal, ParamSpec, Protocol, TypeVar, overload
from uuid import UUID

from asgiref.sync import sync_to_async

from ..core.backends import ConfiguredBackend
from ..core.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    FrameworkTask,
    InvalidTask,
)
from ..core.grouping_policy import Gather
from ..core.ids import as_uuid
from ..core.names import RESERVED, at_module_level, checked_aliases, checked_name, place_of, raise_if_unfit
from ..core.operations import log_operation
from ..core.option_parsers import INHERIT, RETENTION_STATES
from ..core.options import NO_DEFAULTS, DefaultOptions
from ..core.registry import registry
from ..core.retry import ANY_CODE, MAX_INTERVAL, RetryPolicy, is_interval
from ..core.task_options import Backoff, ConcurrencyKey, Retention, Sensitive, TaskOptions
from ..core.unique import Unique
from .context import TaskContext

if TYPE_CHECKING:
    from typing import Unpack

    from ..core.results import TaskResult
    from .handle import TaskHandle
    from .node_factories import TaskNodeFactory
    from .node_option_types import TaskNodeOptions
    from .nodes import MapNode, Node

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
V = TypeVar("V")

#: Attempts of a task that says how to back off but not how often.
DEFAULT_ATTEMPTS: Final = 3

if TYPE_CHECKING:

    class _GenericTask(FrameworkTask[P, T], Generic[P, T]):
        pass

    class _CallableTask(Protocol[P, T_co]):
        """A task, covariant in what it returns: the coroutine of an ``async def`` is a subclass of Coroutine."""

        @property
        def func(self) -> Callable[P, T_co]: ...

else:

    class _GenericTask(FrameworkTask, Generic[P, T]):
        """The framework's Task is generic in the backport and in the type stubs, but not in Django itself."""

        __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HorsiesTask(_GenericTask[P, T]):
    """A task of this backend: the framework's, with options of ours.

    ``func`` and ``call()`` run the function itself, here and now. A task is immutable: ``using()`` and
    ``with_options()`` give changed copies. Durations are seconds. ``name`` is that of the function unless one is given;
    rows have the ``task_name``.
    """

    name: str = None  # type: ignore[assignment]  # __post_init__() sets it where none is given
    aliases: Collection[str] = field(default=(), hash=False)
    max_attempts: int | None = None
    backoff: float | RetryPolicy | Backoff | None = None
    retry_policy: RetryPolicy | None = None
    exception_mapper: Mapping[type[BaseException], str] = field(default_factory=dict, hash=False)
    timeout: float | None = None
    retention: Retention = field(default=INHERIT, hash=False)
    atomic: bool = False
    concurrency_key: ConcurrencyKey | None = None
    concurrency_scope: str | None = None
    max_concurrency: int | None = None
    rate_limit: str | None = None
    metadata: Mapping[str, Any] | None = field(default=None, hash=False, repr=False)
    sensitive: Sensitive = field(default=(), hash=False)
    unique: Unique | None = None
    gather: Gather | None = None
    good_until: datetime | None = None
    unique_key: str | None = None
    task_id: UUID | None = None
    _given_name: str | None = field(default=None, repr=False)  # empty if none was given, None until that is known

    def __post_init__(self) -> None:
        """Validate the task and register it; a copy keeps the names of the task that it is a copy of.

        Raises ValueError for a name or an alias that no row should hold, InvalidTask for any other bad value.
        """
        is_copy = self._given_name is not None
        if not is_copy:
            raise_if_unfit(self.func)
            given: object = self.name
            name = "" if given is None else checked_name("name", given)
            object.__setattr__(self, "_given_name", name)
            object.__setattr__(self, "name", name or getattr(self.func, "__name__", ""))
            object.__setattr__(self, "aliases", checked_aliases(self.aliases))
        if isinstance(self.retention, Mapping):  # a dict of its own: columns made of it are used again and again
            object.__setattr__(self, "retention", dict(self.retention))
        # The engine's own tasks run on every backend of ours, in the queues of their nodes, whatever TASKS says.
        if not str(getattr(self.func, "__module__", "")).startswith(RESERVED):
            FrameworkTask.__post_init__(self)  # super() is the class before it got its slots
        if not is_copy:
            registry.add_task(self, self.aliases)

    @property
    def task_name(self) -> str:
        """The name that rows have: the one that was given, or the dotted path of the function."""
        return self._given_name or self.module_path

    def with_options(self, **options: Any) -> HorsiesTask[P, T]:
        """Return a copy with other options.

        Takes ``good_until``, ``priority``, ``queue_name``, ``run_after``, ``unique``, ``unique_key``, ``task_id``,
        ``retention``, ``timeout``, ``retry_policy``, ``max_attempts``, ``backoff``, ``metadata`` and ``backend``. None
        clears an option; ``retry_policy=None``, as ``max_attempts=1``, means no retries. ``max_attempts`` of a task
        with a policy leaves the rest of that as it is. ``metadata`` is added to the task's, entry by entry, and so is
        ``retention``, state by state. ``task_id`` (a UUID or its text) makes a send that can be repeated: the same call
        again gives the handle of the row there is. Raises TypeError for any other name and InvalidTask for a bad value.
        """
        if unknown := options.keys() - _SEND_OPTIONS:
            raise TypeError(_unknown("with_options()", unknown, _SEND_OPTIONS))
        options |= {
            name: default for name, default in _FRAMEWORK_DEFAULTS.items() if options.get(name, default) is None
        }
        options |= self._retry_options(options)
        if options.get("task_id") is not None:
            options["task_id"] = _uuid(options["task_id"])
        if isinstance(self.metadata, Mapping) and isinstance(options.get("metadata"), Mapping):
            options["metadata"] = {**self.metadata, **options["metadata"]}
        if "retention" in options:
            options["retention"] = _merged_retention(self.retention, options["retention"])
        return replace(self, **options)

    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Enqueue a call as part of the current transaction and return its handle.

        Raises TypeError or ValueError, naming the parameter, for arguments that don't fit; then nothing is inserted.
        """
        return self._horsies().send(self, args, kwargs)

    async def asend(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """See :meth:`send`."""
        return await self._horsies().asend(self, args, kwargs)

    def schedule(
        self, delay_or_eta: float | timedelta | datetime, /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle[T]:
        """Enqueue a call to run after a delay (seconds or timedelta) or at a time (aware datetime)."""
        return self._later(delay_or_eta).send(*args, **kwargs)

    async def aschedule(
        self, delay_or_eta: float | timedelta | datetime, /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle[T]:
        """See :meth:`schedule`."""
        return await self._later(delay_or_eta).asend(*args, **kwargs)

    def send_many(self, calls: Iterable[Mapping[str, Any]]) -> list[TaskHandle[T]]:
        """Enqueue one call for each dict of keyword arguments, with one INSERT per 1,000; all of them or none."""
        return self._horsies().send_many(self, calls)

    def cancel(self, unique_key: str, *, include_running: bool = False) -> bool:
        """Cancel the live task that holds ``unique_key``; return whether there was one."""
        is_cancelled = self._horsies().cancel(unique_key, include_running=include_running)
        log_operation("task.cancel", int(is_cancelled), task=self.task_name)
        return is_cancelled

    async def acancel(self, unique_key: str, *, include_running: bool = False) -> bool:
        """See :meth:`cancel`."""
        return await sync_to_async(self.cancel)(unique_key, include_running=include_running)

    async def asend_many(self, calls: Iterable[Mapping[str, Any]]) -> list[TaskHandle[T]]:
        """See :meth:`send_many`."""
        return await self._horsies().asend_many(self, calls)

    @overload
    def node(
        self: _CallableTask[P, Coroutine[Any, Any, TaskResult[V, Any]]], **options: Unpack[TaskNodeOptions]
    ) -> TaskNodeFactory[P, V]: ...
    @overload
    def node(
        self: _CallableTask[P, Coroutine[Any, Any, V]], **options: Unpack[TaskNodeOptions]
    ) -> TaskNodeFactory[P, V]: ...
    @overload
    def node(
        self: _CallableTask[P, TaskResult[V, Any]], **options: Unpack[TaskNodeOptions]
    ) -> TaskNodeFactory[P, V]: ...
    @overload
    def node(self, **options: Unpack[TaskNodeOptions]) -> TaskNodeFactory[P, T]: ...
    def node(self, **options: Any) -> Any:
        """Return what makes nodes of this task for a workflow: ``save.node(timeout=5)(data=fetch.value)``.

        Takes ``node_id``, ``waits_for``, ``args_from``, ``values_from``, ``workflow_ctx_from``, ``join``,
        ``min_success``, ``allow_failed_deps``, ``run_when``, ``skip_when``, and of a call's own options
        ``queue_name``, ``priority``, ``good_until``, ``retry_policy``, ``timeout``, ``retention`` and ``metadata``.
        Raises TypeError for any other name; bad values are told with the rest of the workflow.
        """
        from .node_factories import task_nodes

        return task_nodes(self, options)

    @overload
    def map(
        self: _CallableTask[..., Coroutine[Any, Any, V]],
        *,
        over: Node[Any],
        param: str | None = ...,
        kwargs: Mapping[str, Any] | None = ...,
        **options: Unpack[TaskNodeOptions],
    ) -> MapNode[V]: ...
    @overload
    def map(
        self: _CallableTask[..., TaskResult[V, Any]],
        *,
        over: Node[Any],
        param: str | None = ...,
        kwargs: Mapping[str, Any] | None = ...,
        **options: Unpack[TaskNodeOptions],
    ) -> MapNode[V]: ...
    @overload
    def map(
        self,
        *,
        over: Node[Any],
        param: str | None = ...,
        kwargs: Mapping[str, Any] | None = ...,
        **options: Unpack[TaskNodeOptions],
    ) -> MapNode[T]: ...
    def map(
        self, *, over: Any, param: str | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """Return a node that calls this task once for each item of the list that the node ``over`` gives.

        An item goes to the parameter ``param``, by default the first; ``kwargs`` are the other arguments, the same for
        each call. Options are those of :meth:`node`. The node's value is the list of theirs, in order.
        """
        from .node_factories import map_node

        return map_node(self, over, param, kwargs, options)

    def stored_policy(self, defaults: DefaultOptions = NO_DEFAULTS) -> RetryPolicy | None:
        """The retry policy as a row stores it; a ``backoff`` that no policy can have is approximated.

        ``defaults`` count for what the task does not say.
        """
        if self.retry_policy is not None:
            return self.retry_policy
        if isinstance(self.backoff, RetryPolicy):
            return self.backoff
        general = defaults.retry_policy if self.backoff is None else None
        if general is not None and self.max_attempts is None:
            return general
        backoff = self.backoff_of(defaults)
        attempts = self.max_attempts or defaults.max_attempts or (1 if backoff is None else DEFAULT_ATTEMPTS)
        if attempts == 1:
            return None
        if general is not None:  # its delays; max_attempts alone is for any failure
            return replace(general.with_retries(attempts - 1), auto_retry_for=(ANY_CODE,))
        return RetryPolicy.standing_for(backoff, attempts - 1)

    def backoff_of(self, defaults: DefaultOptions) -> float | RetryPolicy | Backoff | None:
        """The task's ``backoff``, or the project's default."""
        return defaults.backoff if self.backoff is None and self.retry_policy is None else self.backoff

    def own_backoff(self, policy: RetryPolicy | None, defaults: DefaultOptions) -> float | Backoff | None:
        """The ``backoff`` that says the waits in the place of a row's ``policy``; None if the policy says them itself.

        A row holds a policy alone, so what code computes, or what is too short for a policy, is asked of the task; but
        not for a row that was sent with another policy. How often a call is retried says nothing of the waits.
        """
        backoff = self.backoff_of(defaults)
        if policy is None or isinstance(backoff, RetryPolicy):
            return None
        return backoff if policy == RetryPolicy.standing_for(backoff, policy.max_retries) else None

    def _retry_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """What a call's options on retries come to: a policy says it all, so that each of the three has its say."""
        given = {name: options[name] for name in _RETRY_OPTIONS if options.get(name) is not None}
        policy = self.backoff if isinstance(self.backoff, RetryPolicy) else self.retry_policy
        if not given:
            return {**dict.fromkeys(_RETRY_OPTIONS), "max_attempts": 1} if "retry_policy" in options else {}
        match given:
            case {"max_attempts": attempts, **rest} if not rest and policy is None:
                return {}
            case {"max_attempts": int() as attempts, **rest} if not rest and policy is not None and attempts > 1:
                given = {"retry_policy": policy.with_retries(attempts - 1)}
            case {"backoff": backoff, **rest} if not rest and not isinstance(backoff, RetryPolicy):
                given["max_attempts"] = self.max_attempts if policy is None else policy.max_retries + 1
        if not isinstance(backoff := given.get("backoff"), RetryPolicy | None) and not is_interval(backoff):
            raise InvalidTask(
                f"backoff of a call is {backoff!r}; allowed: 1 to {MAX_INTERVAL:g} seconds or a RetryPolicy."
            )
        return {**dict.fromkeys(_RETRY_OPTIONS), **given}

    def _later(self, delay_or_eta: float | timedelta | datetime) -> HorsiesTask[P, T]:
        if isinstance(delay_or_eta, int | float) and not isinstance(delay_or_eta, bool):
            try:
                delay_or_eta = timedelta(seconds=delay_or_eta)
            except (OverflowError, ValueError):
                raise ValueError(
                    f"schedule() got {delay_or_eta!r}; allowed: seconds from 0 to a hundred years."
                ) from None
        if not isinstance(delay_or_eta, datetime | timedelta):
            raise TypeError(f"schedule() got {delay_or_eta!r}; allowed: seconds, a timedelta or an aware datetime.")
        changes: dict[str, Any] = {"run_after": delay_or_eta}
        return replace(self, **changes)

    def _horsies(self) -> SendingBackend:
        backend = self.get_backend()
        if not isinstance(backend, SendingBackend):
            raise InvalidTask(
                f"TASKS[{self.backend!r}] is {type(backend).__name__}; this needs HorsiesBackend (or use enqueue())."
            )
        return backend


class SendingBackend(ConfiguredBackend, ABC):
    """The backend as its tasks call it."""

    @abstractmethod
    def send(self, task: Any, args: Any, kwargs: Any, *, own: Mapping[str, Any] | None = None) -> TaskHandle[Any]:
        """Insert a call in the current transaction and return its handle; ``own`` are columns of this call alone."""

    @abstractmethod
    def send_many(self, task: Any, calls: Iterable[Mapping[str, Any]]) -> list[TaskHandle[Any]]:
        """Insert many calls in the current transaction; sends no signals."""

    @abstractmethod
    def cancel(self, unique_key: str, *, include_running: bool = False) -> bool:
        """Cancel the live task that holds ``unique_key``; return whether there was one."""

    async def asend(self, task: Any, args: Any, kwargs: Any) -> TaskHandle[Any]:
        """See :meth:`send`."""
        return await sync_to_async(self.send, thread_sensitive=True)(task, args, kwargs)

    async def asend_many(self, task: Any, calls: Iterable[Mapping[str, Any]]) -> list[TaskHandle[Any]]:
        """See :meth:`send_many`."""
        return await sync_to_async(self.send_many, thread_sensitive=True)(task, calls)


_OWN_OPTIONS: Final = frozenset(
    entry.name for entry in fields(HorsiesTask) if not entry.name.startswith("_")
) - frozenset(entry.name for entry in fields(FrameworkTask))
#: What None means for an option that the framework does not let be None.
_FRAMEWORK_DEFAULTS: Final[dict[str, Any]] = {
    "priority": DEFAULT_TASK_PRIORITY,
    "queue_name": DEFAULT_TASK_QUEUE_NAME,
    "backend": DEFAULT_TASK_BACKEND_ALIAS,
}
_PER_SEND: Final = frozenset({"good_until", "unique_key", "task_id"})
_DECORATOR_OPTIONS: Final = _OWN_OPTIONS - _PER_SEND
_RETRY_OPTIONS: Final = frozenset({"retry_policy", "max_attempts", "backoff"})
_SEND_OPTIONS: Final = frozenset(
    {"priority", "queue_name", "run_after", "backend", "retention", "timeout", "metadata", "unique"}
    | _RETRY_OPTIONS
    | _PER_SEND
)


def _uuid(value: object) -> UUID:
    try:
        return as_uuid(value, "task_id")
    except ValueError as error:
        raise InvalidTask(str(error)) from None


def _merged_retention(own: Retention, given: Retention) -> Retention:
    """Return the retention of a call: as given, and the task's own for a state of which that says nothing."""
    if given == INHERIT or own == INHERIT or not (isinstance(own, Mapping) or isinstance(given, Mapping)):
        return given
    both = (kept if isinstance(kept, Mapping) else {RETENTION_STATES[0]: kept} for kept in (own, given))
    return {state: kept for said in both for state, kept in said.items()}


def _unknown(where: str, names: Iterable[str], allowed: Iterable[str]) -> str:
    return f"{where} got unknown option {', '.join(sorted(names))}; allowed: {', '.join(sorted(allowed))}."


@overload
def task(function: Callable[P, T], /) -> HorsiesTask[P, T]: ...
@overload
def task(
    *, gather: Gather, takes_context: bool = ..., **options: Unpack[TaskOptions]
) -> Callable[[Callable[..., T]], HorsiesTask[..., T]]: ...
@overload
def task(
    *, takes_context: Literal[True], **options: Unpack[TaskOptions]
) -> Callable[[Callable[Concatenate[TaskContext, P], T]], HorsiesTask[P, T]]: ...
@overload
def task(
    *, takes_context: Literal[False] = False, **options: Unpack[TaskOptions]
) -> Callable[[Callable[P, T]], HorsiesTask[P, T]]: ...
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    priority: int = DEFAULT_TASK_PRIORITY,
    queue_name: str = DEFAULT_TASK_QUEUE_NAME,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    takes_context: bool = False,
    **options: Any,
) -> Any:
    """Make a task of a module-level function, with every option on every Django.

    ``name`` is what rows call the task, in the place of the function's dotted path; ``aliases`` are names of rows that
    it runs as well: those that it had before, dotted paths too.
    ``max_attempts`` alone retries any failure; ``backoff`` is a number of seconds, a :class:`RetryPolicy` or a callable
    ``(exception, task_result) -> seconds | None``; ``retry_policy`` says it all; ``exception_mapper`` gives an
    exception class, and what inherits from it, an error code of yours; ``timeout`` is in seconds; with ``atomic`` the
    body, its COMPLETED mark and its attempt are one transaction on the queue's database; ``max_concurrency`` and
    ``rate_limit`` are for each ``concurrency_key`` (see :mod:`~.limits`); ``sensitive`` says which
    arguments and which keys of results are masked where people look (see :mod:`~.masking`); ``unique``
    is a :class:`~horsies_django.Unique`, which says which calls are one task; with ``gather``, calls that come close
    together are handed to one run as a list (see :class:`Gather`). Raises TypeError for an unknown option, ValueError
    for a bad ``name`` or ``aliases`` and InvalidTask for any other bad value.
    """
    if misplaced := options.keys() & (_PER_SEND | {"run_after"}):
        names = ", ".join(sorted(misplaced))
        raise TypeError(f"@task can't fix {names} for every call; give it per send: with_options({names}=…).")
    if unknown := options.keys() - _DECORATOR_OPTIONS:
        raise TypeError(_unknown("@task", unknown, _DECORATOR_OPTIONS | {*_FRAMEWORK_DEFAULTS, "takes_context"}))

    def decorate(func: Callable[..., Any]) -> HorsiesTask[Any, Any]:
        return HorsiesTask(
            func=func,
            priority=priority,
            queue_name=queue_name,
            backend=backend,
            takes_context=takes_context,
            run_after=None,
            **options,
        )

    return decorate if function is None else decorate(function)


def register_task(function: HorsiesTask[P, T] | Callable[P, T], /, **options: Unpack[TaskOptions]) -> HorsiesTask[P, T]:
    """Register a task, or make one of a function that cannot be decorated, and return it.

    ``options`` are those of :func:`task`. A function that another one defines needs a ``name``, and every process that
    runs its calls has to register it. Of a task, ``name`` is an alias, such as the dotted path of one that has moved.
    Raises TypeError for other options beside a task, and what :func:`task` raises.
    """
    if isinstance(function, FrameworkTask):
        if unknown := options.keys() - {"name"}:
            raise TypeError(_unknown("register_task() of a task", unknown, ["name"]))
        alias = options.get("name")
        names = [] if alias is None else [checked_name("name", alias)]
        registry.add_task(function, names)
        return function
    if options.get("name") is not None:
        return task(**options)(at_module_level(function))
    if "<" in getattr(function, "__qualname__", ""):  # of a closure or a lambda
        raise InvalidTask(
            f"{place_of(function)} is not at a module level; allowed: with a name, register_task(…, name=…)."
        )
    return task(**options)(function)
