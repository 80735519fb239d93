"""Why a task is not running, with links to what stands in its way."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...core.durations import format_duration
from ...models import Task
from ...ops.diagnosis import Reason, reasons_of
from ..formatting import format_time
from ..links import Links


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """A reason as a page has it."""

    code: str
    words: str
    when: str
    left: str
    links: SafeString


def reason_rows(task: Task, now: datetime, links: Links) -> list[ReasonRow]:
    """Return why a task is not running, the nearest reason first."""
    return [_shown(reason, now, links) for reason in reasons_of(task, now)]


def _shown(reason: Reason, now: datetime, links: Links) -> ReasonRow:
    return ReasonRow(
        reason.code.value,
        reason.words,
        format_time(reason.when) if reason.when else "",
        _left(reason.when, now) if reason.when else "",
        format_html_join(", ", "{}", ((links.to(about.model, about.key, about.label),) for about in reason.about)),
    )


def _left(when: datetime, now: datetime) -> str:
    return _("in %s") % format_duration(when - now) if when > now else _("%s ago") % format_duration(now - when)
