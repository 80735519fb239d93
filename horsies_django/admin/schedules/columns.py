"""The columns of the list of schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from ...core.schedule_enums import DisabledBy
from ...models import Schedule
from ..formatting import format_time
from ..live_columns import LiveAdmin, live_column
from ..times import relative_time
from .state_badge import state_badge
from .timing_text import describe_timing

#: Characters of an error that a row shows.
ERROR: Final = 60


class ScheduleColumns(LiveAdmin):
    """What stands in each column. Rows were read with ``read_at``, the database's clock."""

    @admin.display(description=_("what it runs"))
    def shown_target(self, schedule: Schedule) -> SafeString:
        """The task or the workflow."""
        return format_dotted_path(schedule.task_name or schedule.workflow_name or "-")

    @admin.display(description=_("timing"))
    def shown_when(self, schedule: Schedule) -> SafeString:
        """Its timing in words, and as it is written."""
        is_read = schedule.disabled_by != DisabledBy.TIMING
        words = describe_timing(schedule.timing, schedule.timezone) if is_read else schedule.timing
        return format_html('<span title="{}">{}</span>', schedule.timing, words)

    @live_column
    @admin.display(description=_("state"))
    def shown_state(self, schedule: Schedule) -> SafeString:
        """Whether it is enabled, and who has disabled it."""
        return state_badge(schedule)

    @live_column
    @admin.display(description=_("next run"))
    def shown_next(self, schedule: Any) -> SafeString | str:
        """When it is due, if it is."""
        return format_moment(schedule.next_run_at if schedule.enabled else None, schedule.read_at)

    @live_column
    @admin.display(description=_("last run"))
    def shown_last(self, schedule: Any) -> SafeString | str:
        """When it was last sent."""
        return format_moment(schedule.last_run_at, schedule.read_at)

    @live_column
    @admin.display(description=_("sent so far"))
    def shown_count(self, schedule: Schedule) -> str:
        """How often it was sent."""
        return str(schedule.run_count)

    @live_column
    @admin.display(description=_("last error"))
    def shown_error(self, schedule: Schedule) -> SafeString | str:
        """The beginning of why its latest run was not sent."""
        text = schedule.last_error
        return format_html('<span title="{}">{}</span>', text, Truncator(text).chars(ERROR)) if text else "-"


def format_dotted_path(path: str) -> SafeString:
    """Return a dotted path, the last part of which may stand on a line by itself."""
    module, dot, name = path.rpartition(".")
    return format_html('<span class="horsies-module">{}{}</span><wbr>{}', module, dot, name)


def format_moment(moment: datetime | None, now: datetime) -> SafeString | str:
    """Return a moment as seen from now, and in the reader's own zone; a dash for none."""
    if moment is None:
        return "-"
    return format_html(
        '{} <span class="quiet horsies-at">{}</span>', relative_time(moment, now), format_time(moment, exactly=False)
    )
