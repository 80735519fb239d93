"""Figures in templates."""

from __future__ import annotations

from django import template
from django.utils.formats import number_format

from ..core.durations import brief
from ..ops.metrics import Count, Exactness

register = template.Library()
register.filter("brief", brief)


@register.filter
def grouped(number: int | None) -> str:
    """Return a whole number as people read it."""
    return number_format(number or 0, force_grouping=True)


@register.filter
def shown(count: Count) -> str:
    """Return a count, and by a mark how sure it is."""
    mark = {Exactness.EXACT: "{}", Exactness.ESTIMATE: "≈ {}", Exactness.AT_LEAST: "{}+"}
    return mark[count.exactness].format(grouped(count.number))
