"""The admin's actions on schedules, including those declared in code."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ...models.schedule import DisabledBy, ScheduleQuerySet
from ..actions.admin_action import AdminAction

#: Maximum number of errors in a message.
_MAX_ERRORS: Final = 3


def _run(rows: ScheduleQuerySet) -> int:
    """Send a run of each. A failure is stored on its schedule and does not stop the others."""
    from ...schedules.dispatch import try_run  # only here, because it imports the compiler of workflows

    keys = rows.order_by("pk").values_list("pk", flat=True)
    return sum(try_run(rows.all_rows().filter(pk=key)) is not None for key in keys)


class RunAction(AdminAction):
    """Sends a run of each schedule."""

    def skipped_reason(self, rows: QuerySet[Any]) -> str:
        """Return the errors; a successful run has cleared its own."""
        failed = rows.order_by("name").exclude(last_error="").values_list("name", "last_error")[:_MAX_ERRORS]
        return " ".join(f"{name}: {error}" for name, error in failed)


ENABLE: Final = AdminAction(
    name="enable",
    label=_("Enable"),
    list_label=_("Enable selected schedules"),
    act=ScheduleQuerySet.enable,
    message=lambda count: ngettext("%d schedule enabled.", "%d schedules enabled.", count),
    has_button=lambda schedule: not schedule.enabled,
    logged_columns=("enabled", "next_run_at"),
)

DISABLE: Final = AdminAction(
    name="disable",
    label=_("Disable"),
    list_label=_("Disable selected schedules"),
    act=ScheduleQuerySet.disable,
    message=lambda count: ngettext("%d schedule disabled.", "%d schedules disabled.", count),
    has_button=lambda schedule: schedule.enabled or schedule.disabled_by == DisabledBy.CODE,
    logged_columns=("enabled",),
)

RUN_NOW: Final = RunAction(
    name="run_now",
    label=_("Run now"),
    list_label=_("Run selected schedules now"),
    act=_run,
    message=lambda count: ngettext("%d run enqueued.", "%d runs enqueued.", count),
    logged_columns=("last_task_id", "last_workflow_id"),
)

SCHEDULE_ACTIONS: Final = (RUN_NOW, ENABLE, DISABLE)
