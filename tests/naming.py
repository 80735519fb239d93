"""Ids of parameters that are the same in each run: pytest-xdist compares those of its processes."""

import re


def stable(value: object) -> str:
    """Return the ``repr`` of a parameter without addresses; of a task its name."""
    name = getattr(value, "task_name", None)
    return name if isinstance(name, str) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
