"""Tracebacks of failed tasks, without the frames of the worker that lead to the task's function."""

from __future__ import annotations

from types import TracebackType


def from_function(raised: BaseException) -> TracebackType | None:
    """Return the traceback from the task's function on; the whole traceback if it has only frames of the worker."""
    trace = raised.__traceback__
    while trace and is_of_worker(trace):
        trace = trace.tb_next
    return trace or raised.__traceback__


def is_of_worker(trace: TracebackType) -> bool:
    """Whether the first frame of the traceback is one of the worker's own code."""
    return trace.tb_frame.f_globals.get("__package__") == __package__
