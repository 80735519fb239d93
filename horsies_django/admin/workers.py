"""Workers: who is there."""

from __future__ import annotations

from .base import ReadOnlyAdmin


class WorkerAdmin(ReadOnlyAdmin):
    """Shows the processes that claim tasks."""

    list_display = ("id", "name", "hostname", "pid", "started_at", "last_beat_at")
    ordering = ("-started_at",)
    sortable_by = ()
