"""Queues: what an operator may say of them."""

from __future__ import annotations

from .base import QueueModelAdmin


class QueueAdmin(QueueModelAdmin):
    """Pauses and resumes queues. A queue without a row runs freely."""

    list_display = ("name", "paused")
    list_filter = ("paused",)
    fields = ("name", "paused")
    search_fields = ("name",)
    ordering = ("name",)
