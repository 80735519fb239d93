"""An app that writes every signal of every process to a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.apps import AppConfig


class ListeningConfig(AppConfig):
    """Writes a line for each signal: its name, the task, and ``will_retry`` if present."""

    name = "tests.worker.signals"
    label = "listening"

    def ready(self) -> None:
        """Connect the receivers."""
        from horsies_django.core import signals

        for name in ("task_retrying", "task_crashed", "task_expired", "task_cancelled", "task_finished"):
            getattr(signals, name).connect(_writer(name), weak=False)


def _writer(name: str) -> Any:
    def write(task_result: Any, **facts: Any) -> None:
        facts = {key: facts[key] for key in ("will_retry",) if key in facts}
        with Path(os.environ["SIGNALS_FILE"]).open("a") as file:
            file.write(f"{name} {task_result.id} {facts}\n")

    return write
