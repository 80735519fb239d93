"""The calls that were gathered for one run, on its page: the first ones, however many there are."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import TextField
from django.db.models.functions import Cast
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from ...models import Task, TaskItem
from ...ops.payload_view.contents import contents_of, decode
from ..formatting import as_json, format_number

#: Calls that a page shows.
MAX_ITEMS: Final = 50


def format_items(task: Task) -> SafeString | str:
    """Return the first calls of a task, masked as its arguments are, and how many there are."""
    items = TaskItem.objects.using(task._state.db).filter(task=task.pk).order_by("position")
    texts = items.values_list(Cast("kwargs", TextField()), flat=True)[:MAX_ITEMS]
    calls: list[Any] = [decode(text) for text in texts]
    shown = as_json(calls, contents_of(task).mask)
    if (task.item_count or 0) <= len(calls):
        return shown
    counts = {"shown": format_number(len(calls)), "count": format_number(task.item_count)}
    return format_html('{}<p class="horsies-more">{}</p>', shown, gettext("The first %(shown)s of %(count)s.") % counts)
