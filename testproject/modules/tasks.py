"""The demo's one task."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from horsies_django import task

from .analysis import analyse


@task(queue_name="modules", exception_mapper={SyntaxError: "DOES_NOT_PARSE"})
def report(path: str) -> dict[str, int]:
    """Analyse one module."""
    return asdict(analyse(Path(path)))
