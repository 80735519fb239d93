"""The backend without its app."""

from tests.settings_and_checks.good_sqlite import *  # noqa: F403

INSTALLED_APPS = ["tests.settings_and_checks.apps.HasTasks"]
ROOT_URLCONF = "tests.settings_and_checks.no_urls"
MIDDLEWARE = []
TEMPLATES = []
