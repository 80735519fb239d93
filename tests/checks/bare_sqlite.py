"""SQLite with the settings of ``startproject``."""

from tests.settings import *  # noqa: F403

DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "bare.sqlite3"}}
TASKS = {"default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": []}}
