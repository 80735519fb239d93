"""The line of the object's history about an edited row: each changed field, with its old and its new value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from django.forms import ModelForm
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from .formatting import format_time

#: Characters of a value in the history.
MAX_VALUE: Final = 100


def describe_changes(form: ModelForm[Any], empty: Mapping[str, str], hidden: Collection[str] = ()) -> str:
    """Return the changed fields of a saved form: such as ``Rate limit: 600/m → 300/m``.

    ``empty`` has by field what applies if it is empty. Values of ``hidden`` fields are not shown.
    """
    return " ".join(_describe(form, name, empty.get(name, _("empty")), name in hidden) for name in form.changed_data)


def _describe(form: ModelForm[Any], name: str, empty: str, is_hidden: bool) -> str:
    label = capfirst(str(form.fields[name].label or name))
    if is_hidden:
        return _("%(field)s: changed.") % {"field": label}
    old, new = (_shown(value, empty) for value in (form.initial.get(name), form.cleaned_data.get(name)))
    return f"{label}: {old} → {new}."


def _shown(value: Any, empty: str) -> str:
    if value is None or value == "":
        return empty
    text = format_time(value, exactly=False) if isinstance(value, datetime) else str(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"
