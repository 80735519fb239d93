"""The buttons on an error group's page: each leads all of the group's tasks in one state to an action of their list.

The list counts them, asks, and acts; see :mod:`..actions.bulk_action`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from django.contrib.admin import AdminSite
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpRequest
from django.utils.translation import ngettext

from ...models import Task
from ...ops.metrics import Count
from ..actions.action_admin import ActionAdmin
from ..formatting import format_count
from .links import ErrorUrls

#: For each button: the action, the state of its tasks, and its label with a placeholder for their number.
_BUTTONS: Final[tuple[tuple[str, str, Callable[[int], str]], ...]] = (
    ("retry", "failed", lambda count: ngettext("Retry %s failed task", "Retry %s failed tasks", count)),
    ("run_now", "retrying", lambda count: ngettext("Run %s retrying task now", "Run %s retrying tasks now", count)),
    ("cancel", "retrying", lambda count: ngettext("Cancel %s retrying task", "Cancel %s retrying tasks", count)),
    ("delete", "failed", lambda count: ngettext("Delete %s failed task", "Delete %s failed tasks", count)),
)

#: Django asks for at least one selected row, even if the action is for all that match.
_ANY_ROW: Final = str(UUID(int=0))


@dataclass(frozen=True, slots=True)
class GroupButton:
    """A button: the address to post to, and the hidden fields."""

    label: str
    url: str
    fields: tuple[tuple[str, str], ...]


def group_buttons(
    site: AdminSite, request: HttpRequest, fingerprint: str, counts: Mapping[str, Count]
) -> list[GroupButton]:
    """Return the actions that this user may use, for states with tasks."""
    tasks: Any = site.get_model_admin(Task) if site.is_registered(Task) else None
    if not isinstance(tasks, ActionAdmin) or not tasks.has_view_permission(request):
        return []
    allowed = {action.name for action in tasks.allowed_actions(request)}
    urls = ErrorUrls(site)
    return [
        GroupButton(
            label(count.number) % format_count(count),
            url,
            (("action", name), ("select_across", "1"), ("index", "0"), (ACTION_CHECKBOX_NAME, _ANY_ROW)),
        )
        for name, state, label in _BUTTONS
        if name in allowed and (count := counts[state]) and (url := urls.tasks(fingerprint, state=state))
    ]
