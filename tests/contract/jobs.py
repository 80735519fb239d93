"""Tasks of the contract's tests."""

from __future__ import annotations

import dataclasses

from horsies_django import task


@dataclasses.dataclass
class Point:
    x: int
    y: list[int]


@task
def two(a, b=2, *, c=3):
    return [a, b, c]


@task
def give_back(value):
    return value
