"""Middleware to be put into the settings, and to be forgotten again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.core.middleware import samples


@pytest.fixture(autouse=True)
def _forget() -> None:
    """Begin with nothing seen."""
    for kept in (samples.seen, samples.threads, samples.calls, samples.made):
        kept.clear()


@pytest.fixture
def middleware(settings: Any) -> Callable[..., None]:
    """Set the middleware of the default backend, by its name in ``layers`` or by its dotted path."""

    def put(*names: str) -> None:
        paths = [name if "." in name else f"tests.core.middleware.samples.{name}" for name in names]
        default = settings.TASKS["default"]
        options = {**default["OPTIONS"], "middleware": paths}
        settings.TASKS = {"default": {**default, "OPTIONS": options}}

    return put
