"""Filters for numbers and durations in the admin's templates."""

from __future__ import annotations

from django import template

from ..admin.formatting import format_count, format_number
from ..core.durations import format_brief

register = template.Library()
register.filter("brief", format_brief)
register.filter("format_number", format_number)
register.filter("format_count", format_count)
