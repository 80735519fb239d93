"""The columns of a schedule that code declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..core.backends import config_of
from ..core.clock import stored
from ..core.serialization import encode
from ..enqueue.task import HorsiesTask

if TYPE_CHECKING:
    from .declaring import DeclaredSchedule


def columns_of(declared: DeclaredSchedule, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns. Raises TypeError or ValueError for arguments or options that JSON can't hold."""
    typed = config_of(declared.backend).serializer == "rich"
    args, kwargs = declared.args, declared.kwargs
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        raise TypeError(f"args is {args!r}; allowed: a list or a tuple.")
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs is {kwargs!r}; allowed: a dict.")
    is_task = isinstance(declared.what, HorsiesTask)
    return {
        **own,
        "declared_enabled": own["enabled"],
        "start_at": stored(own["start_at"]),
        "end_at": stored(own["end_at"]),
        "backend": declared.backend,
        "task_name": declared.what.task_name if is_task else None,
        "workflow_name": None if is_task else declared.what._meta.options.definition_key,
        "timing": declared.when.timing,
        "args": [encode(value, typed=typed, where=f"args[{place}]") for place, value in enumerate(args)],
        "kwargs": {name: encode(value, typed=typed, where=f"argument {name!r}") for name, value in kwargs.items()},
        "options": {name: _option(name, value) for name, value in declared.call_options.items()},
    }


def _option(name: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if name == "retention" and isinstance(value, Mapping):
        value = {state: kept.total_seconds() if isinstance(kept, timedelta) else kept for state, kept in value.items()}
    return encode(value, typed=False, where=f"option {name!r}")
