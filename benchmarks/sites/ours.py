"""Settings for horsies-django."""

from .base import *  # noqa: F403
from .base import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "horsies_django"]
TASKS = {
    "default": {
        "BACKEND": "horsies_django.backend.HorsiesBackend",
        "QUEUES": ["default", "other"],
        "OPTIONS": {"modules": ["benchmarks.jobs.ours"]},
    }
}
