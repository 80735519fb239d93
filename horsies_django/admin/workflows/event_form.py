"""The form that sends an event to workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ...core.compat import task_backends
from ...core.serialization import check_size, dumps, encode
from ...enqueue.backend import HorsiesBackend
from ...enqueue.nodes import EVENT_NAME_LENGTH, event_name_error
from ..json_field import JSONPayloadField


class SuggestionInput(forms.TextInput):
    """A text input with suggestions from the browser."""

    suggestions: Sequence[str] = ()

    def render(self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None) -> SafeString:
        """Add the list of suggestions after the input."""
        line = super().render(name, value, {**(attrs or {}), "list": f"{name}-offered"}, renderer)
        options = format_html_join("", '<option value="{}">', ((text,) for text in self.suggestions))
        return format_html('{}<datalist id="{}-offered">{}</datalist>', line, name, options)


class EventForm(forms.Form):
    """The name and payload of an event, as in ``handle.send_event()``."""

    name = forms.CharField(
        label=_("Event"), max_length=EVENT_NAME_LENGTH, widget=SuggestionInput(attrs={"class": "vTextField"})
    )
    payload = JSONPayloadField(
        label=_("Payload"),
        required=False,
        help_text=_('JSON, e.g. {"ok": true} or "yes". It becomes the value of the nodes that wait for the event.'),
        widget=forms.Textarea(attrs={"class": "vLargeTextField", "rows": 5, "spellcheck": "false"}),
        error_messages={"invalid": _("This is not valid JSON. A string needs double quotes.")},
    )

    def suggest(self, names: Sequence[str]) -> None:
        """Suggest these names, with the first as initial value."""
        widget: Any = self.fields["name"].widget
        widget.suggestions = names
        if names:
            self.fields["name"].initial = names[0]
            self.fields["name"].help_text = _("Its nodes wait for: %(names)s.") % {"names": ", ".join(names)}

    def clean_name(self) -> str:
        """Accept the names that ``send_event()`` accepts."""
        name: str = self.cleaned_data["name"]
        if event_name_error(name):
            message = _("%(name)r is not an event name; allowed: a text of 1 to %(limit)d characters.")
            raise forms.ValidationError(message, params={"name": name, "limit": EVENT_NAME_LENGTH})
        return name

    def clean_payload(self) -> Any:
        """Accept payloads that every horsies backend can store."""
        payload = self.cleaned_data["payload"]
        backends = (task_backends[alias] for alias in task_backends)
        limits = [one.config.max_payload_bytes for one in backends if isinstance(one, HorsiesBackend)]
        try:
            encoded = encode(payload, typed=False, where="the payload")
            check_size(dumps(encoded), min(filter(None, limits), default=None), "the payload")
        except (TypeError, ValueError, RecursionError) as error:
            raise forms.ValidationError(str(error)) from error
        return encoded
