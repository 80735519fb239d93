"""A fixture that records every signal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from horsies_django.core import signals
from horsies_django.core.compat import FrameworkTaskResult

NAMES = ("task_retrying", "task_crashed", "task_expired", "task_cancelled", "task_finished")


@dataclass(frozen=True)
class ReceivedSignal:
    """One signal, with the exception and the thread in which it was received."""

    name: str
    sender: Any
    result: FrameworkTaskResult
    facts: dict[str, Any]
    exception: BaseException | None
    thread: str


@pytest.fixture
def received() -> Iterator[list[ReceivedSignal]]:
    """Record every signal until the test ends."""
    found: list[ReceivedSignal] = []
    receivers = []
    for name in NAMES:

        def receive(sender: Any, task_result: Any, signal: Any, name: str = name, **facts: Any) -> None:
            exception, thread = sys.exc_info()[1], threading.current_thread().name
            found.append(ReceivedSignal(name, sender, task_result, facts, exception, thread))

        getattr(signals, name).connect(receive, weak=False)
        receivers.append((getattr(signals, name), receive))
    yield found
    for signal, receive in receivers:
        signal.disconnect(receive)
