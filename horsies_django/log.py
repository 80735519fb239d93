"""``TaskContextFilter`` for ``LOGGING``: each record names the task whose code wrote it."""

from __future__ import annotations

import logging

from .core.current_task import LOG_ATTRIBUTES, current_run, log_attributes

__all__ = ["TaskContextFilter"]


class TaskContextFilter(logging.Filter):
    """Adds ``task_id``, ``task_name``, ``queue``, ``attempt`` and ``workflow_id`` to each record; keeps all records.

    Put it on a handler, so that it sees the records of every logger. Outside of tasks the attributes are None. The
    worker's own lines about a task have them already.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the attributes that the record lacks."""
        if not all(hasattr(record, name) for name in LOG_ATTRIBUTES):
            run = current_run.get()
            for name, value in log_attributes(None if run is None else run.claimed).items():
                if not hasattr(record, name):
                    setattr(record, name, value)
        return True
