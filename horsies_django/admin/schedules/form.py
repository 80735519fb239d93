"""The form of a schedule that no code declares, and the next runs while it is filled in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from zoneinfo import available_timezones

from django import forms
from django.utils.formats import date_format
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ...core.registry import registry
from ...core.schedule_patterns import with_kind
from ...enqueue.task import HorsiesTask
from ...models import Schedule
from ...models.operator_actions import ENGINE_TASK_PREFIX
from ...workflows.definition_registry import definition_registry
from ..ages import relative_time
from ..form_fields import SuggestionInput, UniqueNameForm, validate_date
from ..lists.name_filters import task_names
from .timing_text import describe_timing


class ScheduleForm(UniqueNameForm):
    """The fields of a schedule. The scheduler's validation reports errors by field."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        offered = {"task_name": task_names, "workflow_name": _workflow_names, "timezone": available_timezones}
        for name, names in offered.items():
            if name in self.fields:
                self.fields[name].widget = SuggestionInput(attrs={"class": "vTextField", "spellcheck": "false"})
                self.fields[name].widget.suggestions = sorted(names())
        if "timezone" in self.fields:
            self.fields["timezone"].show_hidden_initial = False  # Django sets it because the default is callable
        if "timing" in self.fields:
            self.fields["timing"].help_text = _(
                "A cron expression, e.g. 0 9 * * MON-FRI, or an interval in seconds, e.g. every:300."
            )
        for name in ("start_at", "end_at"):
            if name in self.fields:
                _name_both_parts(self.fields[name])
                self.fields[name].validators.append(validate_date)

    def clean_task_name(self) -> str | None:
        """Accept only tasks that the project has loaded, so that input never imports a module."""
        name: str | None = self.cleaned_data["task_name"]
        if name and "task_name" in self.changed_data and not _is_loaded_task(name):
            message = _("%(name)s is not a task of this project; allowed: the name of a registered task.")
            raise forms.ValidationError(message, params={"name": name}, code="unknown")
        return name

    def clean_timing(self) -> str:
        """Accept a bare cron expression as well."""
        return with_kind(self.cleaned_data["timing"])

    def clean(self) -> dict[str, Any]:
        """Turn empty values into no arguments and no options. The schedule itself refuses values of another kind."""
        values: dict[str, Any] = super().clean() or {}
        empty: dict[str, Any] = {"args": [], "kwargs": {}, "options": {}}
        return values | {name: empty[name] for name in empty.keys() & values.keys() if values[name] is None}


def _name_both_parts(field: forms.Field) -> None:
    """Label both boxes of a date and time for screen readers; Django does so only since 6.0."""
    date, time = getattr(field.widget, "widgets", (None, None))
    if date is not None and time is not None:
        date.attrs["aria-label"] = _("%(field)s, date") % {"field": field.label}
        time.attrs["aria-label"] = _("%(field)s, time") % {"field": field.label}


def _is_loaded_task(name: str) -> bool:
    return isinstance(registry.tasks.get(name), HorsiesTask) and not name.startswith(ENGINE_TASK_PREFIX)


def _workflow_names() -> set[str]:
    keys = (definition._meta.options.definition_key for definition in definition_registry.definitions.values())
    return set(filter(None, keys))


# The next runs.

#: The fields that the next runs depend on.
TIMING_FIELDS: Final = ("name", "timing", "timezone", "skip_nonexistent", "start_at", "end_at", "jitter")

#: Number of runs shown.
MAX_RUNS: Final = 5


@dataclass(frozen=True, slots=True)
class Preview:
    """The next runs in words and as times, in the schedule's zone and relative to now, or the error.

    Empty if no timing was entered.
    """

    words: str = ""
    runs: tuple[tuple[str, SafeString], ...] = ()
    errors: tuple[str, ...] = ()


def preview_of_form(form: ScheduleForm, now: datetime) -> Preview:
    """Return the next runs of a schedule as entered so far, or what is wrong with the timing; nothing is saved."""
    if not str(form["timing"].value() or "").strip():
        return Preview()
    shown = [name for name in TIMING_FIELDS if name != "name"]
    errors = [f"{form.fields[name].label}: {text}" for name in shown for text in form.errors.get(name, ())]
    if errors:
        return Preview(errors=tuple(errors))
    if not {*form.changed_data}.isdisjoint(TIMING_FIELDS):
        form.instance.next_run_at = form.instance.next_slot_at = None  # computed again
    return preview_of(form.instance, now)


def preview_of(schedule: Schedule, now: datetime) -> Preview:
    """Return the next runs of a schedule, or the error if its timing is invalid."""
    try:
        slots = schedule.slots
        dues = [slots.due_at(slot).astimezone(slots.zone) for slot in slots.upcoming(now, MAX_RUNS)]
    except (ValueError, OverflowError) as error:  # a row written outside the form may exceed the calendar
        return Preview(errors=(str(error),))
    runs = tuple((date_format(due, "D Y-m-d H:i:s T"), relative_time(due, now)) for due in dues)
    return Preview(describe_timing(schedule.timing, schedule.timezone), runs)
