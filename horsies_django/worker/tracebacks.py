"""Tracebacks of failed tasks, without the frames of the worker that lead to the task's function."""

from __future__ import annotations

import sysconfig
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Final

#: Folders of the standard library and of installed packages.
_LIBRARIES: Final = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def from_function(raised: BaseException) -> TracebackType | None:
    """Return the traceback from the task's function on; the whole traceback if it has only frames of the worker."""
    trace = raised.__traceback__
    while trace and is_of_worker(trace):
        trace = trace.tb_next
    return trace or raised.__traceback__


def location_of(raised: BaseException) -> str:
    """Return the module and the function that raised, or that called the library that raised; empty if unknown."""
    frames = [frame for frame, _ in walk_tb(from_function(raised))]
    if not frames:
        return ""
    package = _module(frames[0]).partition(".")[0]
    own = [frame for frame in frames if _module(frame).partition(".")[0] == package or not _is_of_library(frame)]
    return f"{_module(own[-1])}.{own[-1].f_code.co_qualname}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "?"))


def _is_of_library(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen"))


def is_of_worker(trace: TracebackType) -> bool:
    """Whether the first frame of the traceback is one of the worker's own code."""
    return trace.tb_frame.f_globals.get("__package__") == __package__
