"""Runs in a project outside the checkout: opens admin pages in German, and reads the static files that they name."""

import re
from pathlib import Path

import django

django.setup()

from django.apps import apps  # noqa: E402
from django.conf import settings  # noqa: E402
from django.contrib import admin  # noqa: E402
from django.contrib.auth import get_user_model  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import reverse  # noqa: E402

from horsies_django.models import Task  # noqa: E402

client = Client(headers={"accept-language": "de"})
client.force_login(get_user_model().objects.create_superuser("admin"))
models = [model for model in apps.get_app_config("horsies_django").get_models() if admin.site.is_registered(model)]
paths = [
    reverse("admin:index"),
    reverse("admin:app_list", args=["horsies_django"]),
    *(reverse(f"admin:horsies_django_{model._meta.model_name}_changelist") for model in models),
    reverse("admin:horsies_django_task_change", args=[Task.objects.completed().first().pk]),
]
texts = {}
for path in paths:
    response = client.get(path)
    assert response.status_code == 200, (path, response.status_code)
    texts[path] = response.content.decode()

page = " ".join(texts.values())
for words in ("Aufgaben", "Warteschlangen", "Abgeschlossen"):
    assert words in page, words
static = {*re.findall(r'(?:href|src)="/static/([^"]+)"', page)}
assert [name for name in static if not (Path(settings.STATIC_ROOT) / name).is_file()] == []
own = {name for name in static if name.startswith("horsies_django/")}
assert len(own) > 5, own
print(f"{len(paths)} pages, {len(own)} static files of the package")
