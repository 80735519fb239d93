"""The worker's log lines on the terminal, for projects that have not configured any."""

from __future__ import annotations

import logging
from typing import Final

_LEVELS: Final = {0: logging.WARNING, 1: logging.INFO}


def log_to_console(verbosity: int) -> None:
    """Show the lines of ``horsies_django``, unless the project's LOGGING already says where they go.

    ``hasHandlers()`` would not do: Django's own default handler belongs to ``django`` and is silent in production.
    """
    logger = logging.getLogger("horsies_django")
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(_LEVELS.get(verbosity, logging.DEBUG))
