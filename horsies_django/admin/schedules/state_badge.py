"""How a schedule stands, by word."""

from __future__ import annotations

from typing import Any, Final

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ...core.schedule_enums import DisabledBy
from ...ops.metrics.schedules import LATE_AFTER

#: Who has disabled it.
DISABLED: Final = {
    DisabledBy.OPERATOR: _("disabled by an operator"),
    DisabledBy.CODE: _("disabled by the code"),
    DisabledBy.END: _("ended"),
    DisabledBy.TIMING: _("can't be read"),
}


def state_badge(schedule: Any) -> SafeString:
    """Return whether it is enabled, else who has disabled it."""
    if schedule.enabled:
        return format_html('<span class="horsies-alive">{}</span>', _("enabled"))
    kind = "silent" if schedule.disabled_by == DisabledBy.TIMING else "paused"
    words = (
        _("gone from the code") if is_gone_from_code(schedule) else DISABLED.get(schedule.disabled_by) or _("disabled")
    )
    return format_html('<span class="horsies-{}">{}</span>', kind, words)


def is_gone_from_code(schedule: Any) -> bool:
    """Whether code has declared it once and does so no more."""
    return bool(schedule.disabled_by == DisabledBy.CODE and schedule.declared_enabled is None)


def is_late(schedule: Any) -> bool:
    """Whether its time has come and nobody has sent it. It was read with ``next_in``, the seconds until then."""
    return bool(schedule.enabled and schedule.next_in is not None and schedule.next_in < -LATE_AFTER)
