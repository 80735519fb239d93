"""A button that copies a text to the clipboard. Pages without JavaScript do not show it.

In Python ``copy_button("Copy id", text=task.pk)``, in a template (with ``only``)::

    {% include "admin/horsies_django/copy_button.html" with label=label text=value only %}
    {% include "admin/horsies_django/copy_button.html" with label=label target="element-id" show_label=True only %}

With ``target`` it copies what that element of the page shows, such as a masked value in a ``<pre>``, so the page does
not contain the value twice. The button shows an icon, or with ``show_label`` an icon and its label. The page needs the
style sheet and the script: an admin declares ``class Media: css = COPY_CSS; js = COPY_JS``, or adds them to its own
Media. Buttons in parts of the page that are refreshed work too.
"""

from __future__ import annotations

from typing import Any, Final

from django.template.loader import render_to_string
from django.utils.safestring import SafeString

#: The style sheets and the scripts of the button, for ``Media``.
COPY_CSS: Final = {"all": ["horsies_django/copy.css"]}
COPY_JS: Final = ["horsies_django/copy.js"]


def copy_button(label: Any, *, text: Any = "", target: str = "", show_label: bool = False) -> SafeString:
    """Return a button that copies ``text``, or what the element with the id ``target`` shows.

    ``text`` becomes part of the page, so the caller masks it. ``label`` says what is copied; screen readers read it.
    """
    context = {"label": label, "text": text, "target": target, "show_label": show_label}
    return render_to_string("admin/horsies_django/copy_button.html", context)
