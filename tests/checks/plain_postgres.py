"""PostgreSQL as Django has it if nobody says more; no server has to be there."""

from tests.checks.poor_postgres import *  # noqa: F403

DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "nowhere"}}
