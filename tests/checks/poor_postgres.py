"""PostgreSQL with unchecked connections; no server is needed."""

from tests.settings import *  # noqa: F403

DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "nowhere", "CONN_MAX_AGE": None}}
TASKS = {
    "default": {
        "BACKEND": "horsies_django.backend.HorsiesBackend",
        "QUEUES": [],
        "OPTIONS": {"worker": {"threads": 6}},
    }
}
