"""Filters for numbers and durations in the admin's templates."""

from __future__ import annotations

import json

from django import template

from ..admin.ages import age_at
from ..admin.formatting import format_count
from ..core.numbers import duration_texts, format_about, format_brief, format_lower_bound, format_number

register = template.Library()
register.filter("about", format_about)
register.filter("brief", format_brief)
register.simple_tag(age_at, name="age")
register.filter("format_number", format_number)
register.filter("format_lower_bound", format_lower_bound)
register.filter("format_count", format_count)


@register.simple_tag(name="duration_texts")
def texts() -> str:
    """Return the texts with which live.js formats durations, as JSON."""
    return json.dumps(duration_texts())
