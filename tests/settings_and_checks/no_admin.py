"""A project without Django's admin, and without what that needs."""

from tests.settings import *  # noqa: F403

INSTALLED_APPS = ["horsies_django", "tests.jobs"]
MIDDLEWARE = []
TEMPLATES = []
ROOT_URLCONF = "tests.settings_and_checks.no_urls"
