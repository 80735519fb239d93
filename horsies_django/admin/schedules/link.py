"""The link from what was sent to the schedule that has sent it."""

from __future__ import annotations

from django.utils.safestring import SafeString

from ...models import Schedule
from ..links import Links


def schedule_link(key: int, database: str | None, links: Links) -> SafeString | str:
    """Return the name of a schedule as a link, if it is there still and this user may look at it; else its number."""
    name = None
    if links.can_view(Schedule):
        name = Schedule.objects.using(database).filter(pk=key).values_list("name", flat=True).first()
    return str(key) if name is None else links.to(Schedule, key, name)
