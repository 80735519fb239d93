"""Settings for dj-queue."""

import os

from .base import *  # noqa: F403
from .base import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "dj_queue"]
DATABASE_ROUTERS = ["dj_queue.routers.DjQueueRouter"]
TASKS = {
    "default": {
        "BACKEND": "dj_queue.backend.DjQueueBackend",
        "QUEUES": [],
        "OPTIONS": {
            "workers": [
                {
                    "threads": int(os.environ.get("DJ_QUEUE_THREADS", "3")),
                    "processes": int(os.environ.get("DJ_QUEUE_PROCESSES", "1")),
                }
            ]
        },
    }
}
