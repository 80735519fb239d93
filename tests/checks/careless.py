"""Settings with misplaced keys, a priority that the order ignores, and tasks for unknown queues."""

from tests.checks.good_sqlite import *  # noqa: F403

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "horsies_django",
    "tests.checks.lost_queues",
]
ROOT_URLCONF = "tests.checks.lost_queues.urls"
MIDDLEWARE = []
TEMPLATES = []
TASKS = {
    "default": {
        "BACKEND": "horsies_django.backend.HorsiesBackend",
        "QUEUE": ["default"],
        "QUEUES": ["default", "emails"],
        "retention": {"completed": "1d"},
        "OPTIONS": {"queues": {"emails": {"priority": 5, "weight": 3}}, "worker": {"order": "weighted"}},
    },
    "second": {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": "default"},
}
