"""The backend without its app, in a project whose URLconf is the first to import a task."""

from tests.checks.careless import *  # noqa: F403

INSTALLED_APPS = []
TASKS = {"default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": []}}
