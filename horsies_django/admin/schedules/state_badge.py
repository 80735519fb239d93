"""The label of a schedule's state."""

from __future__ import annotations

from typing import Any, Final

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ...models.schedule import DisabledBy
from ...ops.metrics.snapshot import LATE_AFTER

#: Labels by reason for being disabled.
DISABLED: Final = {
    DisabledBy.OPERATOR: _("disabled by an operator"),
    DisabledBy.CODE: _("disabled in code"),
    DisabledBy.END: _("ended"),
    DisabledBy.TIMING: _("invalid timing"),
}


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
    return bool(schedule.enabled and schedule.next_in is not None and schedule.next_in < -LATE_AFTER)
