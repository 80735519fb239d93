"""The settings of the soak: short retention, so that rows come and go as in months of use."""

from tests.settings import *  # noqa: F403

ALLOWED_HOSTS = ["testserver"]
TASKS = {
    "default": {
        "BACKEND": "horsies_django.backend.HorsiesBackend",
        "QUEUES": [],
        "OPTIONS": {
            "queues": {"limited": {"max_concurrency": 2, "rate_limit": "20/s"}},
            "modules": ["tests.soak.jobs"],
            "retention": {"completed": "2m", "failed": "4m", "cancelled": "2m", "expired": "2m"},
            "recovery": {
                "heartbeat_retention_hours": 1,
                "runner_heartbeat_interval_ms": 5_000,
                "claimer_heartbeat_interval_ms": 5_000,
                "check_interval_ms": 5_000,
            },
        },
    }
}
