"""Queues: what an operator may say of them."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from ..models import Queue
from .base import QueueModelAdmin, queue_database


class QueueAdmin(QueueModelAdmin):
    """Pauses and resumes queues. A queue without a row runs freely."""

    list_display = ("name", "paused")
    list_filter = ("paused",)
    fields = ("name", "paused")
    search_fields = ("name",)
    ordering = ("name",)

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        """Write where the workers read, wherever the routers would send it."""
        obj.save(using=queue_database())
