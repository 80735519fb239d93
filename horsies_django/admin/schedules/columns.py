"""The columns of the schedule list, and a schedule's state in words."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from ...core.numbers import format_number
from ...models import Schedule
from ...models.schedule import DisabledBy
from ..ages import relative_time
from ..formatting import format_time
from ..live_columns import LiveAdmin, live_column
from .timing_text import describe_timing

#: Characters of an error in a row.
ERROR: Final = 60

#: Labels by reason for being disabled.
DISABLED: Final = {
    DisabledBy.OPERATOR: _("disabled by an operator"),
    DisabledBy.CODE: _("disabled in code"),
    DisabledBy.END: _("ended"),
    DisabledBy.TIMING: _("invalid timing"),
}


class ScheduleColumns(LiveAdmin):
    """The columns of the schedule list. Rows are annotated with ``read_at``, the database's current time."""

    @admin.display(description=_("task or workflow"))
    def shown_target(self, schedule: Schedule) -> SafeString:
        """The task or workflow."""
        return format_dotted_path(schedule.task_name or schedule.workflow_name or "-")

    @admin.display(description=_("timing"))
    def shown_when(self, schedule: Schedule) -> SafeString:
        """The timing in words, and as stored."""
        is_read = schedule.disabled_by != DisabledBy.TIMING
        words = describe_timing(schedule.timing, schedule.timezone) if is_read else schedule.timing
        return format_html('<span title="{}">{}</span>', schedule.timing, words)

    @live_column
    @admin.display(description=_("state"))
    def shown_state(self, schedule: Schedule) -> SafeString:
        """Whether it is enabled, or why it is disabled."""
        return state_badge(schedule)

    @live_column
    @admin.display(description=_("next run"))
    def shown_next(self, schedule: Any) -> SafeString | str:
        """When it is due next."""
        return format_moment(schedule.next_run_at if schedule.enabled else None, schedule.read_at)

    @live_column
    @admin.display(description=_("last run"))
    def shown_last(self, schedule: Any) -> SafeString | str:
        """When it last ran."""
        return format_moment(schedule.last_run_at, schedule.read_at)

    @live_column
    @admin.display(description=_("total runs"))
    def shown_count(self, schedule: Schedule) -> str:
        """How many runs it has sent."""
        return format_number(schedule.run_count)

    @live_column
    @admin.display(description=_("last error"))
    def shown_error(self, schedule: Schedule) -> SafeString | str:
        """The beginning of the error that kept its latest run from being sent."""
        text = schedule.last_error
        return format_html('<span title="{}">{}</span>', text, Truncator(text).chars(ERROR)) if text else "-"


def format_dotted_path(path: str) -> SafeString:
    """Return a dotted path whose last part may wrap to a line of its own."""
    module, dot, name = path.rpartition(".")
    return format_html('<span class="horsies-module">{}{}</span><wbr>{}', module, dot, name)


def format_moment(moment: datetime | None, now: datetime) -> SafeString | str:
    """Return a time relative to now and in the reader's zone; a dash for None."""
    if moment is None:
        return "-"
    return format_html(
        '{} <span class="quiet horsies-at">{}</span>', relative_time(moment, now), format_time(moment, exactly=False)
    )


def state_badge(schedule: Any) -> SafeString:
    """Return a label: enabled, or why it is disabled."""
    if schedule.enabled:
        return format_html('<span class="horsies-alive">{}</span>', _("enabled"))
    kind = "silent" if schedule.disabled_by == DisabledBy.TIMING else "paused"
    words = (
        _("removed from the code")
        if is_gone_from_code(schedule)
        else DISABLED.get(schedule.disabled_by) or _("disabled")
    )
    return format_html('<span class="horsies-{}">{}</span>', kind, words)


def is_gone_from_code(schedule: Any) -> bool:
    """Return whether code declared it once and no longer does."""
    return bool(schedule.disabled_by == DisabledBy.CODE and schedule.declared_enabled is None)


def is_late(schedule: Any) -> bool:
    """Return whether it is overdue and has not been sent. Reads the annotation ``next_in``, in seconds."""
    from ...ops.metrics.snapshot import LATE_AFTER

    return bool(schedule.enabled and schedule.next_in is not None and schedule.next_in < -LATE_AFTER)
