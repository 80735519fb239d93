"""``@task`` and ``HorsiesTask``, the task that it makes of a function."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    cast,
    overload,
)
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import transaction
from django.db.models import Model

from ..core.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    FrameworkTask,
    InvalidTask,
    task_backends,
)
from ..core.grouping_policy import Gather
from ..core.ids import parse_uuid
from ..core.limits import ConcurrencyKey
from ..core.mask import Sensitive
from ..core.operations import log_operation
from ..core.option_parsers import INHERIT, RETENTION_STATES, Retention
from ..core.options import NO_DEFAULTS, DefaultOptions
from ..core.registry import (
    RESERVED,
    at_module_level,
    check_task_function,
    checked_aliases,
    checked_name,
    registry,
    source_location,
)
from ..core.retry import MAX_INTERVAL, Backoff, RetryPolicy, is_interval, takes_context
from ..core.unique import Unique
from ..db.row_key import RowRef, row_ref
from .context import TaskContext
from .sending_backend import SendingBackend

if TYPE_CHECKING:
    from typing import Unpack

    from ..core.results import TaskResult
    from .framework_verbs import FrameworkVerbs
    from .handle import TaskHandle
    from .node_factories import TaskNodeFactory, TaskNodeOptions
    from .nodes import MapNode, Node

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
V = TypeVar("V")

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


class TaskOptions(TypedDict, total=False):
    """The options of ``@task``, as an editor completes them; :class:`HorsiesTask` explains each."""

    name: str | None
    aliases: Collection[str]
    priority: int
    queue_name: str
    backend: str
    max_attempts: int | None
    backoff: float | RetryPolicy | Backoff | None
    retry_policy: RetryPolicy | None
    exception_mapper: Mapping[type[BaseException], str]
    timeout: float | None
    retention: Retention
    atomic: bool
    concurrency_key: ConcurrencyKey | None
    concurrency_scope: str | None
    max_concurrency: int | None
    one_at_a_time: Literal["about"] | None
    rate_limit: str | None
    metadata: Mapping[str, Any] | None
    sensitive: Sensitive
    unique: Unique | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HorsiesTask(_GenericTask[P, T]):
    """A task of this backend: the framework's Task with more options.

    ``func`` and ``call()`` run the function directly, in this process. A task is immutable: ``using()`` and
    ``with_options()`` return changed copies. Durations are in seconds. ``name`` is the function's name unless another
    is given; rows store the ``task_name``.
    """

    name: str = None  # type: ignore[assignment]  # __post_init__() sets a default
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
    one_at_a_time: Literal["about"] | None = None
    rate_limit: str | None = None
    metadata: Mapping[str, Any] | None = field(default=None, hash=False, repr=False)
    sensitive: Sensitive = field(default=(), hash=False)
    unique: Unique | None = None
    gather: Gather | None = None
    good_until: datetime | None = None
    unique_key: str | None = None
    task_id: UUID | None = None
    about_row: RowRef | None = None
    _given_name: str | None = field(default=None, repr=False)  # "" if none was given, None before __post_init__()
    _backoff_takes_context: bool | None = field(default=None, repr=False, compare=False)  # None: not known yet

    def __post_init__(self) -> None:
        """Validate the task and register it. A copy keeps the names of its original and is not registered.

        Raises ValueError for an invalid name or alias, InvalidTask for any other invalid value.
        """
        is_copy = self._given_name is not None
        if not is_copy:
            check_task_function(self.func)
            value: object = self.name
            name = "" if value is None else checked_name("name", value)
            object.__setattr__(self, "_given_name", name)
            object.__setattr__(self, "name", name or getattr(self.func, "__name__", ""))
            object.__setattr__(self, "aliases", checked_aliases(self.aliases))
        if isinstance(self.retention, Mapping):  # copy the dict: columns made of it are cached
            object.__setattr__(self, "retention", dict(self.retention))
        # Skip validation for the engine's own tasks: they run on every HorsiesBackend, in the queues of their nodes.
        if not str(getattr(self.func, "__module__", "")).startswith(RESERVED):
            FrameworkTask.__post_init__(self)  # super() would be the class before dataclass() added slots
        if not is_copy:
            registry.add_task(self, self.aliases)

    @property
    def task_name(self) -> str:
        """The name in rows: the given name, or the dotted path of the function."""
        return self._given_name or self.module_path

    def backoff_takes_context(self) -> bool:
        """Return whether ``backoff`` is a function of the context. Raises TypeError if it can't be called at all."""
        if not callable(self.backoff):
            return False
        if (answer := self._backoff_takes_context) is None:  # to find out takes longer than a short task
            answer = takes_context(self.backoff)
            object.__setattr__(self, "_backoff_takes_context", answer)
        return answer

    def with_options(self, **options: Any) -> HorsiesTask[P, T]:
        """Return a copy with other options.

        Takes ``good_until``, ``priority``, ``queue_name``, ``run_after``, ``unique``, ``unique_key``, ``task_id``,
        ``retention``, ``timeout``, ``retry_policy``, ``max_attempts``, ``backoff``, ``metadata`` and ``backend``. None
        clears an option; ``retry_policy=None``, like ``max_attempts=1``, means no retries. ``max_attempts`` changes
        only the number of attempts of a task's retry policy. ``metadata`` is merged with the task's by key, and
        ``retention`` by state. ``task_id`` (a UUID or its text) makes a send idempotent: the same call again returns a
        handle of the existing row. Raises TypeError for any other name and InvalidTask for an invalid value.
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
        return self._with_run_after(options) if "run_after" in options else replace(self, **options)

    def about(self, instance: Model) -> HorsiesTask[P, T]:
        """Return a copy whose calls are about this row: ``remind.about(order).send(order.pk)``.

        A call about a proxy is about its concrete model, and one about a child about its topmost parent. See
        ``OPTIONS["about"]`` for what a delete of the row does.

        Raises TypeError for anything but an instance of a model, ValueError for one that is not saved, and InvalidTask
        for one whose key is too long or not of integers, texts or UUIDs, or that is in another database than the queue.
        """
        from ..models.about import listen_to_deletes_of

        row = row_ref(instance)
        listen_to_deletes_of(row.model)
        return replace(self, about_row=row)

    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Enqueue a call as part of the current transaction and return its handle.

        Raises TypeError or ValueError, naming the parameter, for invalid arguments, and inserts nothing.
        """
        return self._horsies().send(self, args, kwargs)

    async def asend(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """See :meth:`send`."""
        return await self._horsies().asend(self, args, kwargs)

    def schedule(
        self, delay_or_eta: float | timedelta | datetime, /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle[T]:
        """Enqueue a call that runs after a delay (seconds or a timedelta) or at a time (an aware datetime)."""
        return self._later(delay_or_eta).send(*args, **kwargs)

    async def aschedule(
        self, delay_or_eta: float | timedelta | datetime, /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle[T]:
        """See :meth:`schedule`."""
        return await self._later(delay_or_eta).asend(*args, **kwargs)

    def enqueue_on_commit(self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Enqueue a call once the current transaction of the default database has committed; at once outside of one.

        This is for a queue in another database than the data. Otherwise :meth:`send` is part of the transaction.
        """
        transaction.on_commit(lambda: self.get_backend().enqueue(self, list(args), dict(kwargs)))

    def send_many(self, calls: Iterable[Mapping[str, Any]]) -> Sequence[TaskHandle[T]]:
        """Enqueue one call for each dict of keyword arguments, 1,000 per INSERT; all of them or none.

        ``calls`` may be a queryset with ``.values()``: its rows are read in chunks, while they are inserted. A handle
        takes 17 bytes. Raises TypeError for a call that is no mapping.
        """
        return self._horsies().send_many(self, calls)

    def cancel(self, unique_key: str, *, include_running: bool = False) -> bool:
        """Cancel the live task that holds ``unique_key``; return whether there was one to cancel."""
        is_cancelled = self._horsies().cancel(unique_key, include_running=include_running)
        log_operation("task.cancel", int(is_cancelled), task=self.task_name)
        return is_cancelled

    async def acancel(self, unique_key: str, *, include_running: bool = False) -> bool:
        """See :meth:`cancel`."""
        return await sync_to_async(self.cancel)(unique_key, include_running=include_running)

    async def asend_many(
        self, calls: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]
    ) -> Sequence[TaskHandle[T]]:
        """See :meth:`send_many`. An async iterable is read to its end before the first INSERT."""
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
        """Return a factory for workflow nodes of this task: ``save.node(timeout=5)(data=fetch.value)``.

        Takes ``node_id``, ``waits_for``, ``args_from``, ``values_from``, ``workflow_ctx_from``, ``join``,
        ``min_success``, ``allow_failed_deps``, ``run_when``, ``skip_when``, and these options of a call:
        ``queue_name``, ``priority``, ``good_until``, ``retry_policy``, ``timeout``, ``retention`` and ``metadata``.
        Raises TypeError for any other name. Invalid values are reported when the workflow is validated.
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
        """Return a node that calls this task once for each item of the list that the node ``over`` returns.

        The parameter ``param``, by default the first, takes the item; ``kwargs`` are the other arguments, the same for
        each call. Options are those of :meth:`node`. The node's value is the list of the calls' values, in order.
        """
        from .node_factories import map_node

        return map_node(self, over, param, kwargs, options)

    def stored_policy(self, defaults: DefaultOptions = NO_DEFAULTS) -> RetryPolicy | None:
        """Return the retry policy that rows store. ``defaults`` apply to options that the task doesn't set."""
        return RetryPolicy.of(self.max_attempts, self.backoff, self.retry_policy, defaults)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = f"; {name}() is {_METHODS_HERE[name]} here" if name in _METHODS_HERE else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def _retry_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the retry options of a copy. ``max_attempts`` or ``backoff`` alone keeps the task's other settings."""
        overrides = {name: options[name] for name in _RETRY_OPTIONS if options.get(name) is not None}
        policy = self.backoff if isinstance(self.backoff, RetryPolicy) else self.retry_policy
        if not overrides:
            return {**dict.fromkeys(_RETRY_OPTIONS), "max_attempts": 1} if "retry_policy" in options else {}
        match overrides:
            case {"max_attempts": attempts, **rest} if not rest and policy is None:
                return {}
            case {"max_attempts": int() as attempts, **rest} if not rest and policy is not None and attempts > 1:
                overrides = {"retry_policy": policy.with_retries(attempts - 1)}
            case {"backoff": backoff, **rest} if not rest and not isinstance(backoff, RetryPolicy):
                overrides["max_attempts"] = self.max_attempts if policy is None else policy.max_retries + 1
        if not isinstance(backoff := overrides.get("backoff"), RetryPolicy | None) and not is_interval(backoff):
            raise InvalidTask(
                f"backoff of a call is {backoff!r}; allowed: 1 to {MAX_INTERVAL:g} seconds or a RetryPolicy."
            )
        return {**dict.fromkeys(_RETRY_OPTIONS), **overrides}

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
        return self._with_run_after({"run_after": delay_or_eta})

    def _with_run_after(self, options: dict[str, Any]) -> HorsiesTask[P, T]:
        """Return a copy with these options, of which another backend may not take ``run_after`` as it is."""
        backend = task_backends[options.get("backend", self.backend)]
        if not isinstance(backend, SendingBackend):
            from .framework_verbs import run_after_of

            options["run_after"] = run_after_of(backend, options["run_after"])
        return replace(self, **options)

    def _horsies(self) -> SendingBackend | FrameworkVerbs:
        backend = self.get_backend()
        if isinstance(backend, SendingBackend):
            return backend
        from .framework_verbs import FrameworkVerbs

        return FrameworkVerbs(backend)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in this process.

        Under another backend of the framework, which calls this, the function gets a context with our methods, and the
        value of a returned TaskResult is returned, or raised.
        """
        if self._is_ours:
            return FrameworkTask.call(self, *args, **kwargs)
        from .framework_verbs import own_context, plain_value

        return cast("T", plain_value(FrameworkTask.call(self, *own_context(self, args), **kwargs)))

    async def acall(self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """See :meth:`call`."""
        if self._is_ours:
            return cast("T", await FrameworkTask.acall(self, *args, **kwargs))
        from .framework_verbs import own_context, plain_value

        return cast("T", plain_value(await FrameworkTask.acall(self, *own_context(self, args), **kwargs)))

    @property
    def _is_ours(self) -> bool:
        """Whether the task's backend is ours, or not configured."""
        return self.backend not in task_backends.settings or isinstance(self.get_backend(), SendingBackend)


_OWN_OPTIONS: Final = frozenset(entry.name for entry in fields(HorsiesTask) if not entry.name.startswith("_")) - {
    "about_row",
    *(entry.name for entry in fields(FrameworkTask)),
}
#: The values that None stands for, for options that can't be None in the framework.
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


#: What methods of Celery are called here.
_METHODS_HERE: Final = {"delay": "send()", "apply_async": "with_options(…).send()"}

#: What options of Celery are called here.
_OPTIONS_HERE: Final = {
    "eta": "run_after",
    "countdown": "run_after",
    "expires": "good_until",
    "queue": "queue_name",
    "bind": "takes_context",
    "time_limit": "timeout",
}


def _uuid(value: object) -> UUID:
    try:
        return parse_uuid(value, "task_id")
    except ValueError as error:
        raise InvalidTask(str(error)) from None


def _merged_retention(own: Retention, override: Retention) -> Retention:
    """Return the retention of a call: as given, and the task's own for states that are not given."""
    if override == INHERIT or own == INHERIT or not (isinstance(own, Mapping) or isinstance(override, Mapping)):
        return override
    by_state = (kept if isinstance(kept, Mapping) else {RETENTION_STATES[0]: kept} for kept in (own, override))
    return {state: kept for retention in by_state for state, kept in retention.items()}


def _unknown(where: str, names: Iterable[str], allowed: Iterable[str]) -> str:
    hints = "".join(f" {name} is {_OPTIONS_HERE[name]} here." for name in sorted(names) if name in _OPTIONS_HERE)
    return f"{where} got unknown option {', '.join(sorted(names))}; allowed: {', '.join(sorted(allowed))}.{hints}"


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
    """Make a task of a module-level function. All options work on every supported Django.

    - ``name`` is the task's name in rows, instead of the function's dotted path; ``aliases`` are former names or dotted
      paths, whose rows the task runs as well.
    - ``max_attempts`` alone retries any failure. ``backoff`` is a number of seconds, a :class:`RetryPolicy` or a
      function of ``(exception, task_result)`` or of the context alone, which returns seconds, a timedelta, or None to
      give up. ``retry_policy`` replaces both. ``exception_mapper`` maps exception classes, and their subclasses, to
      error codes of yours.
    - ``timeout`` is in seconds. With ``atomic``, the function's work, its COMPLETED status and its attempt are one
      transaction on the queue's database.
    - ``max_concurrency`` and ``rate_limit`` apply to each ``concurrency_key`` (see :mod:`~.limits`).
      ``one_at_a_time="about"`` runs one call at a time for each row that calls are about.
    - ``sensitive`` names the arguments and the keys of results to mask (see :mod:`~.masking`).
    - ``unique``, a :class:`~horsies_django.Unique`, deduplicates calls. ``gather``, a :class:`Gather`, passes calls of
      a short time to one run as a list.

    Raises TypeError for an unknown option, ValueError for an invalid ``name`` or alias and InvalidTask for any other
    invalid value.
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
    """Register a task, or make one of a function that can't be decorated, and return it.

    ``options`` are those of :func:`task`. A function defined inside another one needs a ``name``, and every process
    that runs its calls must register it. For a task, ``name`` adds an alias, such as its dotted path before a move.
    Raises TypeError for other options with a task, and the errors of :func:`task`.
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
    if "<" in getattr(function, "__qualname__", ""):  # a closure or a lambda
        raise InvalidTask(
            f"{source_location(function)} is not at a module level; allowed: with a name, register_task(…, name=…)."
        )
    return task(**options)(function)
