"""The change list of workflows."""

from __future__ import annotations

from functools import cached_property
from uuid import UUID

from django.db.models import Q

from ...models import Workflow
from ...ops.keyset.scan import Bounds
from ..lists.changelist import KeysetChangeList
from ..lists.search import Search, is_id


class WorkflowChangeList(KeysetChangeList):
    """Walks the workflows."""

    @cached_property
    def search(self) -> Search:
        """What was typed."""
        return parse_search(self.query, self.root_queryset.db)


def parse_search(text: str, database: str) -> Search:
    """Read what was typed: an id, the unique key of one that has not ended, or the beginning of a name."""
    text = text.replace("\0", "").strip()
    if not text:
        return Search()
    if is_id(text):
        return _by_id(UUID(text))
    holder = Workflow.objects.using(database).holding_unique_key(text).values_list("pk", flat=True).first()
    return _by_id(holder) if holder else Search(Q(name__startswith=text))


def _by_id(key: UUID) -> Search:
    return Search(Q(pk=key), bounds=Bounds(key, key))
