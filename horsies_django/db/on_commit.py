"""Callbacks after a commit whose errors are logged and keep no other callback from running."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from django.db import transaction

P = ParamSpec("P")


def on_commit_robust(database: str, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
    """Call ``function`` with these arguments once the current transaction on ``database`` has committed.

    Django logs an error by the callback's ``__qualname__``, which a ``functools.partial`` does not have: before Django
    6.1 the error of one would reach the caller, after its commit.
    """

    @wraps(function)
    def call() -> None:
        function(*args, **kwargs)

    transaction.on_commit(call, using=database, robust=True)
