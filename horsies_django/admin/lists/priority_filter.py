"""The filter by priority: above, at or below 0, or one exact priority."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...core.compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY
from .filters import ChoiceFilter

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,9}")


class PriorityFilter(ChoiceFilter):
    """Filters by ranges of priority, or by a number."""

    title = _("priority")
    parameter_name = "priority"
    template = "admin/horsies_django/priority_filter.html"
    _RANGES: Final = {"high": Q(priority__gt=0), "normal": Q(priority=0), "low": Q(priority__lt=0)}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the three ranges, and the requested number."""
        ranges: list[tuple[str, Any]] = [("high", _("above 0")), ("normal", _("0")), ("low", _("below 0"))]
        number = _priority(request.GET.get(str(self.parameter_name), ""))
        return [*ranges, (str(number), str(number))] if number else ranges

    def value(self) -> Any:
        """Return the requested range or number, without a plus sign or leading zeros."""
        number = _priority(super().value() or "")
        return super().value() if number is None else str(number or "normal")

    def condition(self, chosen: str) -> Q:
        """Match the range or the number."""
        return self._RANGES[chosen] if chosen in self._RANGES else Q(priority=int(chosen))

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield the choices, and what the form of an exact number needs."""
        yield from super().choices(changelist)
        yield {
            "form": True,
            "others": [(name, value) for name, value in changelist.params.items() if name != self.parameter_name],
            "value": "" if _priority(self.selected or "") is None else self.selected,
            "min": TASK_MIN_PRIORITY,
            "max": TASK_MAX_PRIORITY,
        }


def _priority(text: str) -> int | None:
    """Return the priority in a parameter; None if it is none."""
    if not _NUMBER.fullmatch(text):
        return None
    return number if TASK_MIN_PRIORITY <= (number := int(text)) <= TASK_MAX_PRIORITY else None
