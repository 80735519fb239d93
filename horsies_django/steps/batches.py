"""``context.batches()``: a loop over the rows of a queryset, each turn of which is a transaction.

The transaction holds what the body does with the rows, and the record with the cursor: the place of the last row. So a
turn happens exactly once; a later run of the body goes on after the last turn that was committed.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from types import FrameType, SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import FieldDoesNotExist
from django.db import Error, connections, transaction
from django.db.models import Expression, Field, ForeignObjectRel, QuerySet
from django.db.models.query import ModelIterable, ValuesIterable

from ..core.current_task import inside_step
from ..core.exceptions import StepMismatch, delay_seconds
from ..core.serialization import dumps
from ..core.status import StepKind, StepStatus
from ..db.errors import is_outage
from ..db.expressions import row_after
from ..models.claims import StepRecord

if TYPE_CHECKING:
    from .task_run import TaskRun

Row = TypeVar("Row")

#: Maximum rows that are counted for the total of the progress, where the database does not estimate it.
MAX_COUNTED: Final = 100_000

#: Seconds between two checks, during a pause, whether the body is to stop.
CHECK_INTERVAL: Final = 0.2


@dataclass(frozen=True, slots=True)
class Order:
    """The order of the rows: fields of the model, the primary key among them, in one direction."""

    fields: tuple[Field[Any, Any], ...]
    is_descending: bool

    @classmethod
    def of(cls, queryset: QuerySet[Any, Any]) -> Order:
        """Return the order of a queryset, by default that of the primary key. Raises ValueError."""
        meta, query = queryset.model._meta, queryset.query
        items = (*query.order_by, *query.extra_order_by)
        names = [item.removeprefix("-") if isinstance(item, str) else "" for item in items]
        directions = {item != name for item, name in zip(items, names, strict=True)} or {False}
        own = [field for name in names for field in (meta.pk_fields if name == "pk" else [_field(meta, name)])]
        fields = {field.attname: field for field in own if field is not None}
        if len(fields) < len(own) or len(directions) > 1:
            raise ValueError(
                f"batches() got the order {', '.join(map(repr, items))}; allowed: fields of the model itself that are "
                "never null and not auto_now, each once, all ascending or all descending."
            )
        fields |= {field.attname: field for field in meta.pk_fields if field.attname not in fields}
        return cls(tuple(fields.values()), directions.pop() is query.standard_ordering)

    @property
    def names(self) -> list[str]:
        """What ``order_by()`` takes."""
        return [f"{'-' if self.is_descending else ''}{field.attname}" for field in self.fields]

    def cursor_of(self, row: Any) -> list[str]:
        """Return the place of a row, which is an instance or a dict, as the texts of Django's serializers."""
        instances = [_instance(field, row) if isinstance(row, dict) else row for field in self.fields]
        return [field.value_to_string(instance) for field, instance in zip(self.fields, instances, strict=True)]

    def after(self, cursor: list[str]) -> Expression:
        """Return the condition of the rows that follow a place."""
        values = [field.to_python(text) for field, text in zip(self.fields, cursor, strict=True)]
        return row_after(self.fields, values, is_descending=self.is_descending)


def _field(meta: Any, name: str) -> Field[Any, Any] | None:
    """Return the field of this name if rows may be in its order."""
    try:
        field = meta.get_field(name)
    except FieldDoesNotExist:
        return None
    is_column = field in meta.concrete_fields and (not field.is_relation or name == field.attname)
    return field if is_column and not field.null and not getattr(field, "auto_now", False) else None


def _names(field: Field[Any, Any]) -> list[str]:
    """Return the names by which ``values()`` may give a field."""
    return [field.attname, field.name, *(["pk"] if field.primary_key else [])]


def _instance(field: Field[Any, Any], row: dict[str, Any]) -> Any:
    """Return an object with the value of a field in a row of ``values()``."""
    return SimpleNamespace(**{field.attname: next(row[name] for name in _names(field) if name in row)})


def _order_of(queryset: object, database: str) -> Order:
    """Return the order of a queryset. Raises TypeError or ValueError for one that a loop can't go through."""
    if not isinstance(queryset, QuerySet):
        raise TypeError(f"batches() got {queryset!r}; allowed: a queryset.")
    query = queryset.query
    joins = [getattr(join, "join_field", None) for name, join in query.alias_map.items() if query.alias_refcount[name]]
    problems = {
        f"rows of the database {queryset.db!r}": queryset.db != database,
        "a slice": query.is_sliced,
        "a union, an intersection or a difference": query.combinator,
        "distinct()": query.distinct,
        "aggregates": query.group_by is not None or any(it.contains_aggregate for it in query.annotations.values()),
        "window functions": any(it.contains_over_clause for it in query.annotations.values()),
        "a join to many rows": any(isinstance(it, ForeignObjectRel) and not it.one_to_one for it in joins),
        "values_list() or dates()": queryset._iterable_class not in (ModelIterable, ValuesIterable),
    }
    if problem := next((name for name, is_there in problems.items() if is_there), None):
        raise ValueError(f"batches() got {problem}; allowed: a queryset on {database!r} that has each row once.")
    order = Order.of(queryset)
    if queryset._iterable_class is ValuesIterable:
        missing = [field.name for field in order.fields if not {*_names(field)} & {*query.values_select}]
        if missing:
            raise ValueError(f"batches() got values() without {', '.join(missing)}; allowed: values() with the order.")
    return order


class Loop(Generic[Row]):
    """A loop over the rows of a queryset, in one run of a body."""

    def __init__(
        self,
        run: TaskRun,
        queryset: QuerySet[Any, Row],
        *,
        size: int = 500,
        name: str = "batches",
        lock: bool = False,
        skip_locked: bool = False,
        pause: float | timedelta = 0,
    ) -> None:
        """Check the arguments and take the number of the loop. Makes no query."""
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"batches() got size={size!r}; allowed: an int from 1 on.")
        if skip_locked and not lock:
            raise ValueError("batches() got skip_locked=True without lock=True; allowed: both.")
        self._order = _order_of(queryset, run.database)
        self._rows = queryset.using(run.database).order_by(*self._order.names)
        if not self._rows.query.standard_ordering:  # reversed before
            self._rows = self._rows.reverse()
        if lock:
            self._rows = self._rows.select_for_update(of=("self",), skip_locked=skip_locked)
        self._pause = delay_seconds("batches(pause=)", pause)
        self._size = size
        self._record = StepRecord(*run.replay.begin(StepKind.BATCHES, name), StepKind.BATCHES, StepStatus.RUNNING)
        self._turn: Turn[Row] | None = None
        self._is_intact = True  # no turn is open or has failed
        self._longest = -math.inf  # seconds of the longest turn
        self.run = run
        self.label = f"the loop {self._record.label!r}"

    # All turns.

    def turns(self) -> Iterator[Turn[Row]]:
        """Yield one turn after the other."""
        self._find()
        self.run.replay.open_loop = self.label
        try:
            while (turn := self._next_turn()) is not None:
                yield turn
                if not turn.is_committed:
                    raise RuntimeError(
                        f"A turn of {self.label} was not entered, is open or has failed; allowed: the next turn after "
                        "`with turn as rows:` has ended without an exception."
                    )
                for seconds in self._pauses():
                    time.sleep(seconds)
        finally:
            self.run.replay.open_loop = None
            if self._turn is not None:
                self._turn.roll_back(RuntimeError("The loop has ended."))
            if self._record.status == StepStatus.RUNNING:
                self.run.replay.leave(self._record, partial(_is_over, self._is_intact, _place(sys._getframe(1))))

    def call(self, function: Callable[[list[Row]], object]) -> None:
        """Call a function in each turn."""
        for turn in self.turns():
            with turn as rows:
                function(rows)

    async def acall(self, function: Callable[[list[Row]], object]) -> None:
        """Call a function in each turn, each time in a thread."""
        self.run.replay.enter_child()
        await sync_to_async(self._find)()
        while await sync_to_async(self._call_once)(function):
            for seconds in self._pauses():
                await asyncio.sleep(seconds)

    def _find(self) -> None:
        """Read the record of an earlier run."""
        replay, names = self.run.replay, self._order.names
        self._record = replay.find((self._record.name, self._record.number)) or self._record
        if (before := self._state.get("order", names)) != names:
            replay.decide(StepMismatch(f"The order of {self.label} was {before} and is {names}."))

    @property
    def _state(self) -> dict[str, Any]:
        """What the record of the last turn keeps: empty before the first."""
        state: dict[str, Any] = json.loads(self._record.result or "{}").get("ok", {})
        return state

    # Between turns.

    def _check(self) -> None:
        """Raise what ends the run: the task goes back if its worker stops, or has no time for another turn."""
        self.run.raise_if_stopping()
        if self.run.decided is not None:
            raise self.run.decided
        if not self.run.has_time(self._longest):
            self.run.replay.suspend(None, 0.0)

    def _pauses(self) -> Iterator[float]:
        """Yield for how many seconds to sleep until the next check, until the pause is over."""
        until = time.monotonic() + self._pause
        while (left := until - time.monotonic()) > 0:
            self._check()
            yield min(left, CHECK_INTERVAL)

    # One turn.

    def _next_turn(self) -> Turn[Row] | None:
        """Begin a turn; None if no row is left: then the loop has ended."""
        if self._record.status == StepStatus.COMPLETED:
            return None
        self._check()
        self._is_intact = False
        turn = self._turn = Turn(self)
        return None if turn.is_committed else turn

    def _call_once(self, function: Callable[[list[Row]], object]) -> bool:
        """Call a function in a turn; return whether there was one."""
        turn = self._next_turn()
        if turn is not None:
            with turn as rows:
                function(rows)
        return turn is not None

    def read(self) -> tuple[list[Row], StepRecord]:
        """Return the rows of the next turn, and the record to keep with its effects."""
        self.run.lock_on_sqlite()
        state = self._state
        left = self._rows.filter(self._order.after(state["cursor"])) if state else self._rows
        rows = list(left[: self._size])
        done = {"rows": state.get("rows", 0) + len(rows), "turns": state.get("turns", 0) + bool(rows)}
        if not rows:
            return rows, replace(self._record, status=StepStatus.COMPLETED, result=dumps({"ok": done}))
        total = state["total"] if state else len(rows) if len(rows) < self._size else _estimate(left)
        # The cursor is that of the rows as they are now, before the body changes them.
        done |= {"total": total, "order": self._order.names, "cursor": self._order.cursor_of(rows[-1])}
        return rows, replace(self._record, result=dumps({"ok": done}))

    def record_end(self, record: StepRecord, seconds: float) -> None:
        """Go on from a turn that is committed and has taken so many seconds."""
        self._record, self._is_intact = record, True
        self._longest = max(self._longest, seconds)
        self.run.replay.records()[record.name, record.number] = record
        if self.run.progress == self.run.replay.loop_progress:  # otherwise the body reports its own
            done, total = self._state["rows"], self._state.get("total")
            is_over = record.status == StepStatus.COMPLETED
            total = done if is_over else None if total is None else max(done, total)
            self.run.replay.loop_progress = self.run.progress = dumps({"done": done, "total": total, "message": ""})


def _place(frame: FrameType) -> tuple[int, int]:
    """Return the place in a frame that it executes."""
    return id(frame), frame.f_lasti


def _is_over(is_intact: bool, place: tuple[int, int]) -> bool:
    """Whether the body has left its loop by ``break``: no turn has failed, and no exception was raised at this place.

    Asked at the next step, which may be in a handler of an exception that was raised between two turns, or later.
    """
    link = getattr(sys.exception(), "__traceback__", None)
    while link is not None:
        if (id(link.tb_frame), link.tb_lasti) == place:
            return False
        link = link.tb_next
    return is_intact


def _estimate(rows: QuerySet[Any, Any]) -> int | None:
    """Return about how many rows there are; None if that would take long."""
    if connections[rows.db].vendor == "postgresql":
        return int(json.loads(rows.explain(format="json"))[0]["Plan"]["Plan Rows"])
    count = rows[:MAX_COUNTED].count()
    return count if count < MAX_COUNTED else None


class Turn(Generic[Row]):
    """A turn of ``context.batches()``: ``with turn as rows:``.

    Leaving the block commits what it has done, with the place of the last row; an exception rolls it back.
    """

    def __init__(self, loop: Loop[Row]) -> None:
        self._loop = loop
        self._began = time.monotonic()
        self.is_committed = False
        with loop.run.replay.ending_at_outage(), ExitStack() as stack:
            stack.enter_context(transaction.atomic(using=loop.run.database))
            self._rows, self._record = loop.read()
            if not self._rows:
                loop.run.replay.keep(self._record)
            self._transaction: ExitStack | None = stack.pop_all() if self._rows else None
        if self._transaction is None:
            self._end()

    def __enter__(self) -> list[Row]:
        """Return the rows."""
        if self._transaction is None:
            raise RuntimeError(f"A turn of {self._loop.label} was entered again; allowed: once.")
        self._transaction.enter_context(inside_step(f"a turn of {self._loop.label}"))
        return self._rows

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or roll back after an exception. Raises TaskRevoked if the task is no longer this worker's."""
        if error is not None:
            self.roll_back(error)
            if isinstance(error, Error) and is_outage(error):
                self._loop.run.decided = error
            return
        if self._transaction is None:
            raise RuntimeError(f"A turn of {self._loop.label} was left after the loop; allowed: before the next turn.")
        stack, self._transaction = self._transaction, None
        with self._loop.run.replay.ending_at_outage(), stack:
            self._loop.run.replay.keep(self._record)
        self._end()

    def roll_back(self, error: BaseException) -> None:
        """Roll back, unless the turn has ended."""
        if self._transaction is not None:
            stack, self._transaction = self._transaction, None
            stack.__exit__(type(error), error, error.__traceback__)

    def _end(self) -> None:
        self.is_committed = True
        self._loop.record_end(self._record, time.monotonic() - self._began)
