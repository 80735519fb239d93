"""Backends whose listen_database is wrong, each in its own way, and a right one; no server is needed."""

from tests.settings import *  # noqa: F403

_POSTGRESQL = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "pool",
    "HOST": "pooler",
    "CONN_MAX_AGE": None,
    "CONN_HEALTH_CHECKS": True,
}
DATABASES = {
    "default": {**_POSTGRESQL, "DISABLE_SERVER_SIDE_CURSORS": True},
    "direct": {**_POSTGRESQL, "HOST": "server", "NAME": "shop"},
    "other": {**_POSTGRESQL, "NAME": "other"},
    "pooled": {**_POSTGRESQL, "HOST": "pooler2", "DISABLE_SERVER_SIDE_CURSORS": True},
    "sqlite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
TASKS = {
    name: {"BACKEND": "horsies_django.backend.HorsiesBackend", "OPTIONS": {"listen_database": alias}}
    for name, alias in {
        "default": "direct",
        "other": "other",
        "pooled": "pooled",
        "sqlite": "sqlite",
        "missing": "nowhere",
    }.items()
}
