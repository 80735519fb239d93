"""Middleware in the settings, and empty records of what the samples see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.core.middleware import samples


@pytest.fixture(autouse=True)
def _clear_records() -> None:
    """Clear what the samples have recorded."""
    for record in (samples.seen, samples.threads, samples.calls, samples.sends, samples.made):
        record.clear()


@pytest.fixture
def middleware(settings: Any) -> Callable[..., None]:
    """Set the middleware of the default backend, by its name in ``samples`` or by its dotted path."""

    def put_into_settings(*names: str) -> None:
        paths = [name if "." in name else f"tests.core.middleware.samples.{name}" for name in names]
        default = settings.TASKS["default"]
        options = {**default["OPTIONS"], "middleware": paths}
        settings.TASKS = {"default": {**default, "OPTIONS": options}}

    return put_into_settings
