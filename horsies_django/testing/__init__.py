"""Helpers for a project's own tests: run, find, capture and time-travel tasks without a worker.

All of it works in the calling process and on its connections, inside a ``TestCase`` too. ``docs/testing.md`` has
recipes for each test framework.
"""

from .assertions import all_enqueued, assert_enqueued, assert_waiting, refute_enqueued
from .draining import Drained, adrain, arun, arun_next, drain, run, run_next
from .sends import EnqueuedCall, captured, immediate
from .task_context import RecordingContext, task_context
from .time_travel import travel, travel_to

__all__ = [
    "Drained",
    "EnqueuedCall",
    "RecordingContext",
    "adrain",
    "all_enqueued",
    "arun",
    "arun_next",
    "assert_enqueued",
    "assert_waiting",
    "captured",
    "drain",
    "immediate",
    "refute_enqueued",
    "run",
    "run_next",
    "task_context",
    "travel",
    "travel_to",
]
