"""PostgreSQL with Django's default settings; no server is needed."""

from tests.checks.poor_postgres import *  # noqa: F403

DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "nowhere"}}
