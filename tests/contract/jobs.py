"""Tasks for the tests of the contract."""

from __future__ import annotations

import dataclasses

from horsies_django import task


@dataclasses.dataclass
class Point:
    x: int
    y: list[int]


@task
def collect(a, b=2, *, c=3):
    return [a, b, c]


@task
def echo(value):
    return value
