"""Tasks and values for the tests of sends."""

from __future__ import annotations

import dataclasses
import datetime
import functools

from horsies_django import RetryPolicy, TaskError, TaskResult, task


@dataclasses.dataclass
class Address:
    street: str
    since: datetime.date | None = None


@dataclasses.dataclass(frozen=True)
class Person:
    name: str
    home: Address
    others: list
    size: int = dataclasses.field(default=0, init=False, compare=False)


class Outer:
    @dataclasses.dataclass
    class Inner:
        """A nested dataclass, which the rich serializer refuses."""

        x: int = 0


@task
def triple(a, b=2, *, c=3):
    return [a, b, c]


@task(takes_context=True)
def with_context(context, a, b=2):
    return [context.attempt, a, b]


@task
def identity(value):
    return value


def with_ticket(function):
    """Take a keyword that the function does not have, as a decorator that counts or deduplicates runs does."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        ticket = kwargs.pop("ticket", None)
        return [ticket, *function(*args, **kwargs)]

    return wrapper


@task
@with_ticket
def ticketed(a, b=2):
    return [a, b]


@task
@with_ticket
def ticketed_mapping(kwargs):
    return [kwargs]


@task
def anything(*args, **kwargs):
    return {"args": list(args), "kwargs": kwargs}


@task
async def aanything(*args, **kwargs):
    return {"args": list(args), "kwargs": kwargs}


@task(
    queue_name="slow",
    priority=3,
    timeout=30,
    retention="7d",
    metadata={"team": "a"},
    retry_policy=RetryPolicy.fixed([60, 120], auto_retry_for=["DOWN"]),
)
def with_every_option(a=1):
    return a


@task(max_attempts=4, backoff=5)
def with_attempts():
    """Do nothing."""


@task
def fail():
    raise ValueError("no luck")


@task
async def acoroutine(a):
    return a


def nested(depth: int) -> list:
    """Return a list that is ``depth`` lists deep."""
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    return value


def endless() -> list:
    """Return a list that holds itself."""
    value: list = []
    value.append(value)
    return value


#: Values that a database or JSON refuses, by name, for arguments and results.
HOSTILE = {
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "minus infinity": lambda: float("-inf"),
    "nul": lambda: "a\0b",
    "surrogate": lambda: "a\ud800b",
    "surrogate in a key": lambda: {"\udfff": 1},
    "nul in a key": lambda: {"\0": 1},
    "deep nan": lambda: {"x": [1, {"y": (float("nan"),)}]},
    "nan as a key": lambda: {float("nan"): 1},
    "bytes": lambda: b"\xff",
    "nul in bytes": lambda: b"\0",
    "set": lambda: {1},
    "object": lambda: object(),
    "class": lambda: Outer,
    "tuple as a key": lambda: {(1, 2): 3},
    "nested dataclass": Outer.Inner,
    "10,000 lists": lambda: nested(10_000),
    "endless": endless,
    "an integer of 5,000 digits": lambda: 10**5_000,
}


@task
def give_hostile(name):
    return HOSTILE[name]()


@task
def give_nested(depth):
    return nested(depth)


#: Texts for errors, some of which a database refuses.
TEXTS = {
    "nul": "before\0after",
    "surrogate": "before\ud800after",
    "surrogates in the wrong order": "\udc00\ud800",
    "long": "x" * 100_000 + "the end",
    "long and hostile": "\0\ud800" * 50_000,
    "looks like SQL": "'; DROP TABLE horsies_tasks; -- %s %(x)s {}",
    "looks like JSON": '"}\\u0000',
    "backslash u": "\\u0000 \\ud800",
    "empty": "",
}


class UnstorableText(Exception):
    def __str__(self):
        return "\0\ud800"

    __repr__ = __str__


LongName = type("L" + "o" * 400 + "ng", (Exception,), {})
UnstorableModule = type("UnstorableModule", (Exception,), {"__module__": "a\0b"})


@task
def raise_text(name):
    raise RuntimeError(TEXTS[name])


@task
def return_text(name):
    text = TEXTS[name]
    return TaskResult(err=TaskError(error_code="MINE", message=text, data={"text": text}))


@task
def return_code(name):
    return TaskResult(err=TaskError(error_code=TEXTS[name], message="see the code"))


@task
def raise_class(name):
    raise {"text": UnstorableText, "name": LongName, "module": UnstorableModule}[name]


@task(exception_mapper={LookupError: "LOST"})
def mapped():
    raise KeyError("k")


@task
def fail_with(data):
    return TaskResult(err=TaskError(error_code="MINE", message="see the data", data=data))


@task(max_attempts=3, backoff=0)
def promises_a_number() -> int:
    return "no number"  # type: ignore[return-value]  # the wrong type is deliberate
