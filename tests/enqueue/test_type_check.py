"""A value that contradicts its parameter's type hint is refused before the send; any other value passes."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import wraps
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict, TypeVar, Union
from uuid import UUID

import pytest
from django.db.models import TextChoices
from django.utils.translation import gettext_lazy

from horsies_django import TaskError, TaskResult
from horsies_django.core.type_check import mismatches, return_problem, return_rule
from horsies_django.models import Task
from tests.enqueue import jobs
from tests.jobs import tasks
from tests.naming import stable

pytestmark = pytest.mark.once

T = TypeVar("T")
UserId = NewType("UserId", int)


class Colour(TextChoices):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Row(TypedDict):
    a: int


@dataclass
class Point:
    x: int


class Text(str):
    pass


def problems(hint, value, default=...):
    def func(x): ...

    func.__annotations__ = {"x": hint}
    if default is not ...:
        func.__defaults__ = (default,)
    return list(mismatches(func, ["x"], [value], {}))


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 1),
        (int, True),
        (int, Level.LOW),
        (UserId, 7),
        (float, 1),
        (float, 1.5),
        (bool, True),
        (bool, 1),
        (str, "x"),
        (str, Text("x")),
        (str, Colour.RED),
        (str, gettext_lazy("x")),
        (Colour, "red"),
        (UUID, "01a1fd83-a2ab-7e7b-84a6-1f6d1625fd06"),
        (Decimal, "1.5"),
        (Decimal, 1),
        (list, (1, 2)),
        (tuple[int, str], [1, "x"]),
        (list[int], [1, 2]),
        (list[Any], ["x", 1]),
        (list[T], ["x"]),
        (Sequence[str], ["x"]),
        (Sequence[str], "x"),
        (dict[str, int], {"a": 1}),
        (Mapping, {"a": 1}),
        (Row, {"a": 1}),
        (Point, {"x": 1}),
        (None, None),
        (Optional[int], None),  # noqa: UP045
        (Union[int, str], "x"),  # noqa: UP007
        (int | None, None),
        (int | Point, "x"),
        (Literal["a", 1], "a"),
        (Annotated[int, "of euros"], 3),
        (Any, object()),
        (object, 1),
        ("Nothing", 1),
        ([int], 1),
        ({"a": 1}, 1),
    ],
    ids=stable,
)
def test_a_value_that_may_fit_its_hint_passes(hint, value):
    assert problems(hint, value) == []


@pytest.mark.parametrize(
    ("hint", "value", "allowed"),
    [
        (int, "1", "int"),
        (int, 1.5, "int"),
        (int, None, "int"),
        (UserId, "x", "UserId"),
        (float, "1.5", "float"),
        (bool, "yes", "bool"),
        (str, 1, "str"),
        (list[int], [1, "x"], "list[int]"),
        (list, "x", "list"),
        (dict, [1], "dict"),
        (int | None, "x", "int | None"),
        (Literal["a", 1], "b", "Literal['a', 1]"),
        (Annotated[int, "of euros"], "x", "Annotated[int, 'of euros']"),
    ],
    ids=repr,
)
def test_a_value_that_contradicts_its_hint_is_reported_with_the_allowed_type(hint, value, allowed):
    (found,) = problems(hint, value)
    assert found.startswith(f"argument 'x' is {value!r} ({type(value).__name__}); allowed: ")
    assert allowed.split("[")[0] in found


@pytest.mark.parametrize(("hint", "default"), [(int, None), (int, "auto")])
def test_a_default_value_passes_whatever_its_hint(hint, default):
    assert problems(hint, default, default) == []
    assert problems(hint, [], default)


def test_hints_of_star_args_do_not_apply_to_arguments_named_args_or_kwargs():
    def func(*args: int, **kwargs: int): ...

    assert list(mismatches(func, [], [], {"args": "x", "kwargs": "y"})) == []


def test_a_wrapper_is_not_checked_against_the_return_hint_it_wraps():
    def func() -> int: ...

    @wraps(func)
    def wrapper():
        return {}

    assert return_rule(wrapper) is None


@pytest.mark.parametrize(
    ("hint", "value", "fits"),
    [
        (int, 1, True),
        (int, "x", False),
        (int, None, True),
        (TaskResult[int, TaskError], 1, True),
        (TaskResult[int, TaskError], "x", False),
        (TaskResult, "x", True),
        (TaskResult[int, TaskError] | str, "x", True),
        (TaskResult[int, TaskError] | str, [1], False),
    ],
    ids=repr,
)
def test_a_return_value_that_contradicts_its_hint_is_a_problem(hint, value, fits):
    def func(): ...

    func.__annotations__ = {"return": hint}
    assert (return_problem(func, value) is None) == fits


@pytest.mark.django_db(transaction=True)
def test_a_send_with_a_wrong_type_raises_type_error_and_inserts_nothing():
    with pytest.raises(TypeError, match=r"tests\.jobs\.tasks\.add: argument 'b' is '2' \(str\); allowed: int\."):
        tasks.add.send(1, b="2")
    with pytest.raises(TypeError, match="argument 'a'"):
        tasks.add.enqueue("1")
    with pytest.raises(TypeError, match="argument 'a'"):
        tasks.add.send_many([{"a": 1}, {"a": "x"}])
    assert not Task.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_wrong_return_type_fails_the_task_without_a_retry(drain):
    handle = jobs.promises_a_number.send()
    drain()
    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.error_code, row.attempt) == ("FAILED", "RETURN_TYPE_MISMATCH", 1)
    assert "the return value is 'no number' (str); its hint says int." in row.result["err"]["message"]
