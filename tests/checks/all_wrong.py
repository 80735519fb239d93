"""Settings with every kind of mistake, for ``manage.py check``."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

# The tasks of this app are for a queue that TASKS below does not have.
INSTALLED_APPS = [name for name in INSTALLED_APPS if name != "testproject.modules"]
ROOT_URLCONF = __name__  # nor its view
urlpatterns: list[object] = []

USE_TZ = False
TASKS = {
    "default": {
        "BACKEND": "horsies_django.backend.HorsiesBackend",
        "QUEUES": ["default", "emails"],
        "OPTIONS": {
            "database": "nowhere",
            "colour": "red",
            "serializer": "pickle",
            "queues": {"emials": {}, "emails": {"priority": 1_000, "max_concurency": 5}},
            "recovery": {"claimed_stale_threshold_ms": 30_000, "claimer_heartbeat_interval_ms": 30_000},
            "retention": {"completed": "7 fortnights", "failed": -1},
            "worker": {"threads": 0, "processes": "2", "treads": 8},
        },
    },
    "second": {
        "BACKEND": "horsies_django.backend.HorsiesBackend",
        "OPTIONS": {"worker": {"poll_interval": 0}, "recovery": None},
    },
}
