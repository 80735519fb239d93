"""SQLite in memory, as settings for tests often have it."""

from tests.checks.bare_sqlite import *  # noqa: F403

DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
