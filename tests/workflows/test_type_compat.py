"""Which type hints can never hold the same value."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NewType, TypedDict, TypeVar

import pytest

from horsies_django import TaskError, TaskResult
from horsies_django.workflows.inputs import accepted_types, are_disjoint, produced_types

UserId = NewType("UserId", int)
T = TypeVar("T")


class Movie(TypedDict):
    name: str


@dataclass
class Person:
    name: str


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (str, int),
        (int, str),
        (int, bool),
        (float, int),
        (None, str),
        (list[str], str),
        (str, list[str]),
        (dict, list),
        (str, int | None),
        (list[int] | None, str),
        (UserId, str),
        (Literal["a"], int),
        (Movie, str),
        (Annotated[str, "x"], int),
        (TaskResult[str, TaskError[Any]], int),
        (TaskResult[str, TaskError[Any]] | str, int),
        (str, TaskResult[str, TaskError[Any]]),
    ],
)
def test_hints_without_a_common_value_are_disjoint(source, target):
    assert are_disjoint(produced_types(source), accepted_types(target))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (str, str),
        (int, float),
        (bool, int),
        (str | None, str),
        (str, str | None),
        (tuple[int, int], list[int]),
        (list[int], Sequence[int]),
        (str, Sequence[str]),
        (dict[str, int], Iterable[str]),
        (dict, Mapping[str, Any]),
        (Movie, dict),
        (Any, int),
        (int, Any),
        (object, int),
        (Person, str),
        (str, Person),
        (T, int),
        ("no type", int),
        (UserId, int),
        (TaskResult[str, TaskError[Any]], str),
        (TaskResult, int),
        ([1], int),
    ],
)
def test_compatible_or_unknown_hints_are_not_disjoint(source, target):
    assert not are_disjoint(produced_types(source), accepted_types(target))


@pytest.mark.parametrize(
    ("hint", "answer"),
    [
        (TaskResult, True),
        (TaskResult[str, TaskError[Any]], True),
        (TaskResult[str, TaskError[Any]] | None, True),
        (Any, True),
        (object, True),
        (str, False),
        (str | None, False),
        (list[TaskResult], False),
    ],
)
def test_the_accepted_types_tell_whether_a_hint_takes_a_result(hint, answer):
    assert are_disjoint(frozenset({TaskResult}), accepted_types(hint)) is not answer
