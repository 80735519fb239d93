"""Forms of rows with unique names, and fields: JSON, texts with suggestions, dates; what a saved form has changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.forms import ModelForm
from django.forms.fields import InvalidJSONInput
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .base import queue_database
from .formatting import format_time

if TYPE_CHECKING:
    AnyModelForm = forms.ModelForm[Any]
else:  # generic in the type stubs only
    AnyModelForm = forms.ModelForm

#: The years that a form accepts.
FIRST_YEAR: Final = 1900
LAST_YEAR: Final = 9997

#: Characters of a value in the history of a row.
MAX_VALUE: Final = 100

#: HTML attributes of a box for JSON.
JSON_BOX: Final = {"class": "vLargeTextField", "rows": 4, "spellcheck": "false"}


class UniqueNameForm(AnyModelForm):
    """A form of a row that no other one may share its name with."""

    def validate_unique(self) -> None:
        """Check the name in the queue's database; Django would check the database that the routers name."""
        name, model = self.cleaned_data.get("name"), type(self.instance)
        others = model._default_manager.using(queue_database()).exclude(pk=self.instance.pk)
        if name is not None and others.filter(name=name).exists():
            self.add_error("name", self.instance.unique_error_message(model, ("name",)))


class JSONPayloadField(forms.JSONField):
    """A JSON form field that redisplays its input as typed and validates what ``json`` cannot parse."""

    def to_python(self, value: Any) -> Any:
        """Parse the input. Raise ValidationError for too deep nesting and too many digits as well."""
        try:
            return super().to_python(value)
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(str(error)) from error

    def prepare_value(self, value: Any) -> Any:
        """Show None as an empty box, not as ``null``."""
        return "" if value is None else super().prepare_value(value)

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Redisplay the input as typed, because the parsed value may not be serializable again."""
        return None if data is None else InvalidJSONInput(data)


class SuggestionInput(forms.TextInput):
    """A text input with suggestions from the browser."""

    suggestions: Sequence[str] = ()

    def render(self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None) -> SafeString:
        """Add the list of suggestions after the input."""
        line = super().render(name, value, {**(attrs or {}), "list": f"{name}-offered"}, renderer)
        options = format_html_join("", '<option value="{}">', ((text,) for text in self.suggestions))
        return format_html('{}<datalist id="{}-offered">{}</datalist>', line, name, options)


def validate_date(moment: datetime) -> None:
    """Raise ValidationError for a year outside ``FIRST_YEAR``–``LAST_YEAR``, where time zones leave the calendar."""
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        message = _("The year is %(year)d; allowed: from %(first)d to %(last)d.")
        years = {"year": moment.year, "first": FIRST_YEAR, "last": LAST_YEAR}
        raise ValidationError(message, params=years, code="out_of_range")


def describe_changes(form: ModelForm[Any], empty: Mapping[str, str], hidden: Collection[str] = ()) -> str:
    """Return the changed fields of a saved form: such as ``Rate limit: 600/m → 300/m``.

    ``empty`` has by field what applies if it is empty. Values of ``hidden`` fields are not shown.
    """
    return " ".join(
        _describe(form, name, empty.get(name, gettext("empty")), name in hidden) for name in form.changed_data
    )


def _describe(form: ModelForm[Any], name: str, empty: str, is_hidden: bool) -> str:
    label = capfirst(str(form.fields[name].label or name))
    if is_hidden:
        return gettext("%(field)s: changed.") % {"field": label}
    old, new = (_shown(value, empty) for value in (form.initial.get(name), form.cleaned_data.get(name)))
    return f"{label}: {old} → {new}."


def _shown(value: Any, empty: str) -> str:
    if value is None or value == "":
        return empty
    text = format_time(value, exactly=False) if isinstance(value, datetime) else str(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"
