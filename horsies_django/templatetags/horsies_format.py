"""Filters for numbers and durations in the admin's templates."""

from __future__ import annotations

from django import template

from ..admin.formatting import format_number
from ..core.durations import format_brief
from ..ops.metrics import Count, Exactness

register = template.Library()
register.filter("brief", format_brief)
register.filter("format_number", format_number)


@register.filter
def format_count(count: Count) -> str:
    """Return a count, with a mark that says how exact it is."""
    mark = {Exactness.EXACT: "{}", Exactness.ESTIMATE: "≈ {}", Exactness.AT_LEAST: "{}+"}
    return mark[count.exactness].format(format_number(count.number))
