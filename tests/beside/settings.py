"""The tests' settings with the apps that many projects have."""

from debug_toolbar.settings import PANELS_DEFAULTS

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS, MIDDLEWARE

INSTALLED_APPS = [
    *INSTALLED_APPS,
    *("debug_toolbar", "django_celery_beat", "django_celery_results", "rest_framework", "silk", "simple_history"),
    *("modelcluster", "taggit", "wagtail.users", "wagtail.admin", "wagtail.documents", "wagtail.images", "wagtail"),
    "tests.beside",
]
MIDDLEWARE = [
    "silk.middleware.SilkyMiddleware",
    "debug_toolbar.middleware.DebugToolbarMiddleware",
    *MIDDLEWARE,
    "simple_history.middleware.HistoryRequestMiddleware",
]
ROOT_URLCONF = "tests.beside.urls"
DEBUG_TOOLBAR_CONFIG = {"IS_RUNNING_TESTS": False, "SHOW_TOOLBAR_CALLBACK": "tests.beside.urls.show_toolbar"}
DEBUG_TOOLBAR_PANELS = [*dict.fromkeys([*PANELS_DEFAULTS, "debug_toolbar.panels.tasks.TasksPanel"])]
WAGTAIL_SITE_NAME = "beside"
WAGTAILADMIN_BASE_URL = "http://localhost"
