"""Random bodies: programs of steps, waits, loops, branches and handlers, and what a plain interpreter makes of them.

A program is a list of operations. ``interpret()`` runs it as a generator: it yields what is to be done, and gets the
value or the exception. So a body, a coroutine and the plain interpreter run the same code.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from hypothesis import strategies as st

from horsies_django import RetryPolicy, TaskContext
from horsies_django.exceptions import StepFailed, WaitTimeout
from horsies_django.models import Task
from horsies_django.reaper.crashed import recover_all
from tests.jobs.entries import write_entry
from tests.steps.jobs import Refused

Program = list[Any]
Interpreter = Generator[tuple[Any, ...], Any, int]

NAMES = st.sampled_from("abc")

#: A minute between two tries of a step gives up the slot.
POLICIES = {delay: RetryPolicy.constant(delay, max_retries=2, auto_retry_for=["*"]) for delay in (0, 60)}


def operations(*, is_async: bool) -> st.SearchStrategy[Any]:
    """Return the strategy for one operation."""
    simple = st.one_of(
        st.tuples(st.just("step"), NAMES, st.booleans()),
        st.tuples(st.just("step"), NAMES, st.booleans()),
        st.tuples(st.just("fail"), NAMES, st.booleans()),
        st.tuples(st.just("flaky"), NAMES, st.booleans(), st.integers(1, 2), st.sampled_from([0, 60])),
        st.tuples(st.just("sleep"), st.sampled_from([0, 3600])),
        st.tuples(st.just("event"), st.sampled_from([None, 3600])),
        st.tuples(st.just("raise")),
    )
    if is_async:
        gathered = st.lists(st.tuples(st.sampled_from(["step", "step", "fail"]), NAMES), min_size=2, max_size=4)
        simple = st.one_of(simple, st.tuples(st.just("gather"), gathered))
    return st.recursive(
        simple,
        lambda inner: st.one_of(
            st.tuples(st.just("loop"), st.integers(0, 3), blocks(inner)),
            st.tuples(st.sampled_from(["branch", "patched"]), blocks(inner), blocks(inner)),
            st.tuples(st.just("try"), blocks(inner), st.none() | blocks(inner), st.none() | blocks(inner)),
        ),
        max_leaves=6,
    )


def blocks(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Program]:
    """Return the strategy for the body of a loop, a branch or a handler."""
    return st.lists(inner, min_size=1, max_size=3)


def programs(*, is_async: bool = False) -> st.SearchStrategy[Program]:
    """Return the strategy for programs."""
    return st.lists(operations(is_async=is_async), min_size=1, max_size=6)


class Crash(BaseException):
    """The process dies here."""


def interpret(program: Program, last: int = 0) -> Interpreter:
    """Yield what a program does; return its last value."""
    for kind, *rest in program:
        match kind:
            case "loop":
                count, body = rest
                for _ in range(count):
                    last = yield from interpret(body, last)
            case "branch":
                last = yield from interpret(rest[last % 2], last)
            case "patched":
                is_new = yield (kind, "change")
                last = yield from interpret(rest[0 if is_new else 1], last)
            case "try":
                last = yield from _guarded(*rest, last)
            case "raise":
                raise Refused("raised")
            case _:
                last = yield (kind, *rest)
    return last


def _guarded(body: Program, handler: Program | None, final: Program | None, last: int) -> Interpreter:
    try:
        try:
            last = yield from interpret(body, last)
        except (Refused, StepFailed, WaitTimeout):
            if handler is None:
                raise
            last = yield from interpret(handler, last)
    except Crash:
        raise
    except BaseException:
        yield from interpret(final or [], last)
        raise
    return (yield from interpret(final or [], last))


@dataclass
class Plain:
    """The plain interpreter: what a program would do if nothing went wrong. ``sent`` events come before it begins."""

    sent: int
    effects: list[str] = field(default_factory=list)
    atomic: set[str] = field(default_factory=set)
    gathered: list[set[str]] = field(default_factory=list)
    result: int | str = ""
    _counts: Counter[str] = field(default_factory=Counter)

    def run(self, program: Program) -> None:
        """Run a program to its end."""
        try:
            self.result = drive(interpret(program), self._perform)
        except StepFailed:
            self.result = "STEP_FAILED"
        except (Refused, WaitTimeout):
            self.result = "UNHANDLED_EXCEPTION"

    def _perform(self, kind: str, *rest: Any) -> Any:
        match kind:
            case "patched":
                return True
            case "sleep":
                return 0
            case "event":
                self._counts["event"] += 1
                if rest[0] is not None and self._counts["event"] > self.sent:
                    raise WaitTimeout
                return self._counts["event"]
            case "gather":
                return self._gather(rest[0])
        name, is_atomic = rest[:2]
        self._counts[name] += 1
        number = self._counts[name]
        if kind != "fail" or not is_atomic:  # the effect of an atomic one is undone
            self.effects.append(f"{name}{number}")
            self.atomic |= {f"{name}{number}"} if is_atomic else set()
        if kind == "fail":
            raise StepFailed
        return number

    def _gather(self, steps: list[tuple[str, str]]) -> int:
        keys = []
        for _, name in steps:
            self._counts[name] += 1
            keys.append(f"{name}{self._counts[name]}")
        self.gathered.append(set(keys))
        self.effects += keys
        return sum(index for index, (kind, _) in enumerate(steps, 1) if kind == "step")


@dataclass
class Actual:
    """A program as the body of a task, in which the process dies at each of these points."""

    program: Program
    crashes: set[int]
    points: int = 0
    _tries: Counter[str] = field(default_factory=Counter)

    def body(self, context: TaskContext) -> int:
        """Run the program in a function."""
        try:
            return drive(interpret(self.program), partial(self._perform, context, Counter()))
        except Crash:
            recover(context)
            raise

    async def abody(self, context: TaskContext) -> int:
        """Run the program in a coroutine."""
        interpreter, counts = interpret(self.program), Counter[str]()
        try:
            act: Callable[[], tuple[Any, ...]] = partial(next, interpreter)
            while True:
                try:
                    request = act()
                except StopIteration as stop:
                    return stop.value
                try:
                    act = partial(interpreter.send, await self._aperform(context, counts, *request))
                except BaseException as error:  # it is thrown into the program
                    act = partial(interpreter.throw, error)
        except Crash:
            await sync_to_async(recover)(context)
            raise

    def point(self) -> None:
        """Die here, if this is one of the points."""
        self.points += 1
        if self.points in self.crashes:
            raise Crash

    def _perform(self, context: TaskContext, counts: Counter[str], kind: str, *rest: Any) -> Any:
        self.point()
        match kind:
            case "patched":
                value: Any = context.patched(*rest)
            case "sleep":
                value = context.sleep(*rest) or 0
            case "event":
                value = context.wait_event("go", timeout=rest[0])
            case _:
                name, is_atomic = rest[:2]
                options = {"atomic": is_atomic, "retry_policy": POLICIES[rest[3]] if kind == "flaky" else None}
                value = context.step(name, self._effect, *self._call(context, counts, kind, rest), **options)
        self.point()
        return value

    async def _aperform(self, context: TaskContext, counts: Counter[str], kind: str, *rest: Any) -> Any:
        self.point()
        match kind:
            case "patched":
                value: Any = await context.apatched(*rest)
            case "sleep":
                value = await context.asleep(*rest) or 0
            case "event":
                value = await context.await_event("go", timeout=rest[0])
            case "gather":
                steps = [
                    context.astep(name, self._aeffect, *self._call(context, counts, kind, (name,)))
                    for kind, name in rest[0]
                ]
                values = await asyncio.gather(*steps, return_exceptions=True)
                if died := [error for error in values if isinstance(error, Crash)]:
                    raise died[0]
                value = sum(index for index, one in enumerate(values, 1) if not isinstance(one, BaseException))
            case _:
                name, is_atomic = rest[:2]
                options = {"atomic": is_atomic, "retry_policy": POLICIES[rest[3]] if kind == "flaky" else None}
                value = await context.astep(name, self._effect, *self._call(context, counts, kind, rest), **options)
        self.point()
        return value

    def _call(self, context: TaskContext, counts: Counter[str], kind: str, rest: Any) -> tuple[str, str, int, int]:
        counts[rest[0]] += 1
        fails = {"fail": 1_000_000, "flaky": rest[2] if kind == "flaky" else 0}.get(kind, 0)
        return str(context.run.task_id), rest[0], counts[rest[0]], fails

    def _effect(self, task_id: str, name: str, number: int, fails: int) -> int:
        self.point()
        write_entry(f"{task_id} {name}{number}")
        self.point()
        self._tries[f"{name}{number}"] += 1
        if self._tries[f"{name}{number}"] <= fails:
            raise Refused(name)
        return number

    async def _aeffect(self, *call: Any) -> int:
        await asyncio.sleep(0)
        return await sync_to_async(self._effect)(*call)


def drive(interpreter: Interpreter, perform: Callable[..., Any]) -> int:
    """Run a program, and let ``perform`` do what it yields."""
    act: Callable[[], tuple[Any, ...]] = partial(next, interpreter)
    try:
        while True:
            request = act()
            try:
                act = partial(interpreter.send, perform(*request))
            except BaseException as error:  # it is thrown into the program
                act = partial(interpreter.throw, error)
    except StopIteration as stop:
        return stop.value


def recover(context: TaskContext) -> None:
    """Recover the task of a process that has died, as its supervisor does. What the run still does counts no more."""
    recover_all(Task.objects.filter(pk=context.run.task_id))
