"""A project with only the app: no admin, none of the apps that it needs, and no queue named default."""

from tests.settings import *  # noqa: F403

INSTALLED_APPS = ["horsies_django"]
MIDDLEWARE = []
TEMPLATES = []
ROOT_URLCONF = "tests.checks.no_urls"
TASKS = {"default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": ["emails", "alarms"]}}
