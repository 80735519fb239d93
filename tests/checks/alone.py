"""A project of nothing but the app: no admin, nor what that needs, and no queue that is called default."""

from tests.settings import *  # noqa: F403

INSTALLED_APPS = ["horsies_django"]
MIDDLEWARE = []
TEMPLATES = []
ROOT_URLCONF = "tests.checks.no_urls"
TASKS = {"default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": ["emails", "alarms"]}}
