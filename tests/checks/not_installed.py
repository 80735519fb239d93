"""The backend without its app."""

from tests.checks.good_sqlite import *  # noqa: F403

INSTALLED_APPS = ["tests.checks.apps.HasTasks"]
ROOT_URLCONF = "tests.checks.no_urls"
MIDDLEWARE = []
TEMPLATES = []
