"""Settings for django-ox."""

from .base import *  # noqa: F403
from .base import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "django_ox"]
TASKS = {"default": {"BACKEND": "django_ox.backend.OxBackend"}}
