"""Ears for the framework's signals, and settings to change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.management import call_command

from horsies_django.core.compat import (
    BaseTaskBackend,
    FrameworkTaskResult,
    task_enqueued,
    task_finished,
    task_started,
)

SIGNALS = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}


@dataclass(frozen=True)
class Heard:
    """One signal, and what was true while it was received."""

    name: str
    sender: Any
    result: FrameworkTaskResult
    exception: BaseException | None


@pytest.fixture
def heard() -> Iterator[list[Heard]]:
    """Keep every signal of the framework until the test ends."""
    found: list[Heard] = []
    receivers = []
    for name, signal in SIGNALS.items():

        def receive(sender: Any, task_result: FrameworkTaskResult, name: str = name, **kwargs: Any) -> None:
            found.append(Heard(name, sender, task_result, sys.exc_info()[1]))

        signal.connect(receive, weak=False)
        receivers.append((signal, receive))
    yield found
    for signal, receive in receivers:
        signal.disconnect(receive)


@pytest.fixture
def backend_settings(settings: Any) -> Callable[..., None]:
    """Change entries of ``TASKS["default"]`` until the test ends."""

    def change(**entries: Any) -> None:
        settings.TASKS = {"default": {**settings.TASKS["default"], **entries}}

    return change


@pytest.fixture
def reap() -> Callable[[], None]:
    """Run one pass of the reaper."""
    return lambda: call_command("horsies_reaper", once=True, verbosity=0)


def path_of(name: str) -> str:
    """Return the dotted path of a backend that comes with the framework, wherever that lives."""
    package = BaseTaskBackend.__module__.rpartition(".")[0]
    return f"{package}.{name.lower()}.{name}Backend"
