"""The settings of the tests, with the inboxes, a transaction for each request, and no page without a login."""

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, MIDDLEWARE

ROOT_URLCONF = "tests.inbox.urls"
DATABASES["default"]["ATOMIC_REQUESTS"] = True
DATABASES["default"]["CONN_MAX_AGE"] = 0  # runserver has a thread for each connection of a client
MIDDLEWARE = [*MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
ALLOWED_HOSTS = ["*"]
