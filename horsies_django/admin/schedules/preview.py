"""The next runs of a schedule, for its page and while it is edited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django import forms
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import ValidationError
from django.http import QueryDict
from django.utils.formats import date_format
from django.utils.safestring import SafeString

from ...core.schedule_patterns import with_kind
from ...models import Schedule
from ..ages import relative_time
from ..form_fields import validate_date
from .timing_text import describe_timing

#: Number of runs shown.
MAX_RUNS: Final = 5


@dataclass(frozen=True, slots=True)
class UpcomingRun:
    """A future run: its time in the schedule's zone, and relative to now."""

    text: str
    left: SafeString


@dataclass(frozen=True, slots=True)
class Preview:
    """The next runs in words and as times, or the error. Empty if no timing was entered."""

    words: str = ""
    runs: tuple[UpcomingRun, ...] = ()
    errors: tuple[str, ...] = ()


class TimingForm(forms.Form):
    """The timing fields of the schedule form."""

    name = forms.CharField(required=False)
    timing = forms.CharField(required=False)
    timezone = forms.CharField(required=False)
    skip_nonexistent = forms.BooleanField(required=False)
    start_at = forms.SplitDateTimeField(required=False, widget=AdminSplitDateTime, validators=[validate_date])
    end_at = forms.SplitDateTimeField(required=False, widget=AdminSplitDateTime, validators=[validate_date])
    jitter = forms.FloatField(required=False)


#: The parameters that the page posts for them.
NAMES: Final = (
    "name", "timing", "timezone", "skip_nonexistent", "start_at_0", "start_at_1", "end_at_0", "end_at_1", "jitter",
)  # fmt: skip


def preview_of_form(typed: QueryDict, schedule: Schedule, now: datetime) -> Preview:
    """Return the next runs of a schedule as entered so far; nothing is saved."""
    form = TimingForm(typed)
    if not form.is_valid():
        return Preview(errors=tuple(_error_lines(form.errors)))
    values = form.cleaned_data | {"jitter": form.cleaned_data["jitter"] or 0.0}
    values["timing"] = with_kind(values["timing"])
    if not values["timing"]:
        return Preview()
    if any(getattr(schedule, name) != value for name, value in values.items()):
        schedule.next_run_at = schedule.next_slot_at = None  # computed again
    for name, value in values.items():
        setattr(schedule, name, value)
    try:
        schedule.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        shown = [name for name in form.fields if name != "name"]
        if wrong := {name: error.message_dict[name] for name in shown if name in error.message_dict}:
            return Preview(errors=tuple(_error_lines(wrong)))
    return preview_of(schedule, now)


def preview_of(schedule: Schedule, now: datetime) -> Preview:
    """Return the next runs of a schedule, or the error if its timing is invalid."""
    try:
        slots = schedule.slots
        dues = [slots.due_at(slot).astimezone(slots.zone) for slot in slots.upcoming(now, MAX_RUNS)]
    except (ValueError, OverflowError) as error:  # a row written outside the form may exceed the calendar
        return Preview(errors=(str(error),))
    runs = tuple(UpcomingRun(date_format(due, "D Y-m-d H:i:s T"), relative_time(due, now)) for due in dues)
    return Preview(describe_timing(schedule.timing, schedule.timezone), runs)


def _error_lines(errors: Mapping[str, Any]) -> Iterator[str]:
    for name, messages in errors.items():
        field: Any = Schedule._meta.get_field(name) if name in TimingForm.base_fields else None
        label = field.verbose_name if field else ""
        yield from (f"{label}: {text}" if label else str(text) for text in messages)
