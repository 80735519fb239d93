"""Fixtures that record the framework's signals, change settings and run the reaper."""

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
class ReceivedSignal:
    """A received signal, and the exception that was being handled then."""

    name: str
    sender: Any
    result: FrameworkTaskResult
    exception: BaseException | None


@pytest.fixture
def received() -> Iterator[list[ReceivedSignal]]:
    """Record every signal of the framework until the test ends."""
    signals: list[ReceivedSignal] = []
    receivers = []
    for name, signal in SIGNALS.items():

        def receive(sender: Any, task_result: FrameworkTaskResult, name: str = name, **kwargs: Any) -> None:
            signals.append(ReceivedSignal(name, sender, task_result, sys.exc_info()[1]))

        signal.connect(receive, weak=False)
        receivers.append((signal, receive))
    yield signals
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


def backend_path(name: str) -> str:
    """Return the dotted path of a backend of the framework, be that Django or django-tasks."""
    package = BaseTaskBackend.__module__.rpartition(".")[0]
    return f"{package}.{name.lower()}.{name}Backend"
