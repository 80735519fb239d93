"""A mixin of model admins that shows messages about the search above the list."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse

from ..base import QueueModelAdmin
from .changelist import KeysetChangeList
from .search import show_messages


class SearchMessages(QueueModelAdmin):
    """Says what is invalid in the search, and where a mask has hidden values from it."""

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Add the messages before the page is rendered; masks are known only after the scan."""
        response = super().changelist_view(request, extra_context)
        listed = (getattr(response, "context_data", None) or {}).get("cl")
        if isinstance(listed, KeysetChangeList) and listed.query:
            assert listed.page
            show_messages(request, listed.search)
        return response
