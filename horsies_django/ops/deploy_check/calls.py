"""Judge the names and arguments of stored calls by what is registered in this process, and collect the problems."""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, Final, TypeVar
from uuid import UUID

from ...core.backends import reads_typed
from ...core.compat import FrameworkTask
from ...core.exceptions import NotRegistered
from ...core.parameters import Parameters, parameters_of
from ...core.registry import registry
from ...core.serialization import decode_problems, has_tags
from ...enqueue.task import HorsiesTask
from ...workflows.conditions import condition_at
from ...workflows.definition_registry import definition_at

T = TypeVar("T")

#: Rows of one name whose contents are examined: the first and the last half of those that are read.
SAMPLE: Final = 100

#: Rows whose contents are in memory at once. Each may have megabytes.
CHUNK: Final = 20


@dataclass(slots=True, kw_only=True)
class Breakage:
    """Rows that would break for one reason.

    Attributes:
        what: ``task``, ``queue``, ``schedule``, ``node``, ``condition`` or ``workflow``; ``run`` or ``worker`` in a
            warning.
        name: The name that the rows have.
        reason: Why they would break, as a clause.
        count: How many rows were found.
        sample: How many rows were examined to find them; None if that was each row of this name.
        is_at_least: Whether there may be more rows, because not all could be read.
        example: The id of one of them; of a node, the ids of its workflow and its own.
    """

    what: str
    name: str
    reason: str
    count: int = 0
    sample: int | None = None
    is_at_least: bool = False
    example: str

    def __str__(self) -> str:
        rows = f"{self.count:,} {'row' if self.count == 1 else 'rows'}"
        if self.sample is not None:
            rows = f"{self.count:,} of {self.sample:,} rows that were examined"
        elif self.is_at_least:
            rows = f"at least {rows}"
        return f"{self.what}: {self.name}: {self.reason} ({rows}, e.g. {self.example})"


@dataclass(frozen=True, slots=True)
class DeployReport:
    """The result of a check.

    Attributes:
        breakages: What would break, sorted.
        warnings: What may break: tasks with steps that have begun under another version of the code, and workers of
            another release of this package.
        read: How many rows of each kind were read.
        unread: A sentence for each part that was not read to its end.
    """

    breakages: Sequence[Breakage]
    warnings: Sequence[Breakage]
    read: Mapping[str, int]
    unread: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return {**asdict(self), "read": dict(self.read)}


@dataclass(slots=True)
class Sample:
    """The first and the last rows of a name, and the number of all."""

    count: int = 0
    first: list[Any] = field(default_factory=list)
    last: deque[Any] = field(default_factory=lambda: deque(maxlen=SAMPLE // 2))


class Check:
    """Collects problems while rows are read.

    ``database`` has the rows; ``backend`` is the alias whose rows are checked, None for all. ``queues`` are those of
    all backends; empty: any.
    """

    def __init__(self, database: str, backend: str | None, queues: Collection[str]) -> None:
        self.database = database
        self.backend = backend
        self.read: Counter[str] = Counter(tasks=0, nodes=0, schedules=0)
        self.begun: list[tuple[UUID, str]] = []
        self._queues = queues
        self._unread: list[str] = []
        self._partial: set[str] = set()
        self._samples: defaultdict[tuple[str, str], Sample] = defaultdict(Sample)
        self._breakages: dict[tuple[str, str, str], Breakage] = {}

    def add(self, what: str, name: str, reason: str | None, example: object, sample: int | None = None) -> bool:
        """Record a row that would break for a reason, if there is one; return whether there is."""
        if reason is not None:
            new = Breakage(what=what, name=name, reason=reason, sample=sample, example=str(example))
            self._breakages.setdefault((what, name, reason), new).count += 1
        return reason is not None

    def add_queue(self, name: str, example: object) -> None:
        """Record a row that would wait for ever, if no backend has its queue."""
        if self._queues and name not in self._queues:
            self.add("queue", name, "no backend has this queue in its QUEUES", example)

    def add_to_sample(self, what: str, name: str, row: Any) -> None:
        """Add a row whose name is known to those of which a sample is examined."""
        sample = self._samples[what, name]
        sample.count += 1
        (sample.first if len(sample.first) < SAMPLE // 2 else sample.last).append(row)

    def examine(self, what: str, problems: Callable[[str, Sequence[Any]], Iterable[tuple[str, object]]]) -> None:
        """Record the problems of a sample of the rows of each name; each problem has an example."""
        for (kind, name), sample in sorted(self._samples.items()):
            rows = [*sample.first, *sample.last]
            for place in range(0, len(rows), CHUNK) if kind == what else ():
                for problem, example in problems(name, rows[place : place + CHUNK]):
                    self.add(what, name, problem, example, len(rows) if len(rows) < sample.count else None)

    def read_rows(self, rows: Iterable[T], limit: int, sentence: str, *whats: str) -> Iterator[T]:
        """Yield up to ``limit`` rows. If there are more, record the sentence, and that more of ``whats`` may break."""
        for number, row in enumerate(rows):
            if number == limit:
                self.record_unread(sentence, *whats)
                return
            yield row

    def record_unread(self, sentence: str, *whats: str) -> None:
        """Record that there are more rows than were read, for which more may break."""
        self._partial.update(whats)
        self._unread.append(sentence)

    def report(self) -> DeployReport:
        """Return everything that was found."""
        found = [self._breakages[key] for key in sorted(self._breakages)]
        for each in found:
            each.is_at_least = each.what in self._partial
        warnings = [each for each in found if each.what in ("run", "worker")]
        breakages = [each for each in found if each not in warnings]
        return DeployReport(breakages, warnings, dict(self.read), self._unread)


def find_task(name: str) -> FrameworkTask[..., Any] | None:
    """Return the task of that name, or None."""
    try:
        return registry.find_task(name)
    except NotRegistered:
        return None


def name_problem(name: str) -> str | None:
    """Return why no worker could run a task of that name; None if one could."""
    return None if find_task(name) is not None else "no task of this name is registered"


def condition_problem(path: str) -> str | None:
    """Return why no worker could evaluate a condition; None if one could."""
    try:
        condition_at(path)
    except NotRegistered:
        return "no condition of this name is registered"
    return None


def definition_problem(key: str) -> str | None:
    """Return why no worker could build a workflow; None if one could."""
    try:
        definition_at(key)
    except NotRegistered as error:
        return str(error).partition(";")[0]
    return None


def definition_parameters(key: str) -> Parameters:
    """Return the parameters of the builder of a definition. Raises NotRegistered."""
    return parameters_of(definition_at(key).build_with, False)


def task_parameters(task: FrameworkTask[..., Any]) -> Parameters:
    """Return the parameters of a task's function."""
    return parameters_of(task.func, task.takes_context)


def gathers(task: FrameworkTask[..., Any]) -> bool:
    """Whether the calls of a task are gathered."""
    return isinstance(task, HorsiesTask) and task.gather is not None


def signature_problem(parameters: Parameters, args: Sequence[Any], names: Collection[str]) -> str | None:
    """Return why a function can't be called with these arguments; None if it can."""
    context = (None,) if parameters.takes_context else ()
    try:
        parameters.signature.bind(*context, *args, **dict.fromkeys(names))
    except TypeError as error:
        return str(error)
    return None


def read_json(text: str | None, kind: type[T]) -> T:
    """Parse a stored column. Raises ValueError if it can't be parsed, or holds another type."""
    try:
        value = json.loads(text or "null")
    except (ValueError, RecursionError):
        raise ValueError("the stored arguments can't be read") from None
    if not isinstance(value, kind):
        raise ValueError(f"a {type(value).__name__} is stored in the place of a {kind.__name__}")
    return value


def value_problems(values: Iterable[Any], backend: str, *, is_typed: bool) -> Iterator[str]:
    """Yield why stored values can't be read as what they were."""
    values = list(values)
    try:
        if reads_typed(backend, is_typed):
            yield from dict.fromkeys(chain.from_iterable(map(decode_problems, values)))
        elif is_typed and any(map(has_tags, values)):
            yield f"it has rich values, and TASKS has no {backend!r} whose serializer is 'rich'"
    except RecursionError:
        yield "the stored arguments are nested too deeply"
