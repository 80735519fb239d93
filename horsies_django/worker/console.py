"""The worker's log lines on the terminal, for projects that have not configured any."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Final

_LEVELS: Final = {0: logging.WARNING, 1: logging.INFO}

#: Seconds after a write in which lines are gathered, unless one is a warning.
_GATHERING: Final = 0.05

logger = logging.getLogger("horsies_django")


def log_to_console(verbosity: int, *, gathers: bool = False) -> None:
    """Show the lines of ``horsies_django``, unless the project's LOGGING already says where they go.

    Who ``gathers`` calls :func:`write_lines` whenever it has nothing to do. ``hasHandlers()`` would not do here:
    Django's own default handler belongs to ``django`` and is silent in production.
    """
    if not logger.handlers and not logging.getLogger().handlers:
        handler = _Console()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(_LEVELS.get(verbosity, logging.DEBUG))
    for handler in _consoles():
        handler.gathers = gathers


def write_lines() -> None:
    """Write what was gathered."""
    for handler in _consoles():
        handler.flush()


class _Console(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes the lines of many tasks at once: a write lets other threads go on, which costs more than the line."""

    def __init__(self) -> None:
        super().__init__()
        self.gathers = False
        self._lines: list[str] = []
        self._wrote_at = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record))
        except Exception:  # noqa: BLE001  # as every handler does
            self.handleError(record)
        is_urgent = not self.gathers or record.levelno >= logging.WARNING
        if is_urgent or time.monotonic() > self._wrote_at + _GATHERING:
            self.flush()

    def flush(self) -> None:
        self.acquire()
        try:
            if self._lines:
                lines, self._lines = self._lines, []
                self._wrote_at = time.monotonic()
                self.stream.write("\n".join([*lines, ""]))
            super().flush()
        finally:
            self.release()


def _consoles() -> Iterator[_Console]:
    return (handler for handler in logger.handlers if isinstance(handler, _Console))
