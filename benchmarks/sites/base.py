"""Settings for all peers that are Django apps: one database with persistent connections."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.peers.base import DATABASE, FOLDER

SECRET_KEY = "for-measuring-only"  # noqa: S105
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes"]


def _database() -> dict[str, Any]:
    if not DATABASE:
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(FOLDER / "site.sqlite3"),
            "CONN_MAX_AGE": None,
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 30,
                "init_command": "PRAGMA journal_mode=WAL;",
            },
        }
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(DATABASE)
    connections: dict[str, dict[str, Any]] = {"default": {}, "kept": {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "USER": parts.get("user", ""),
        "PASSWORD": parts.get("password", ""),
        "HOST": parts.get("host", ""),
        "PORT": str(parts.get("port", "")),
        "OPTIONS": {name: value for name, value in parts.items() if name.startswith("ssl")},
        **connections.get(os.environ.get("BENCHMARK_CONNECTIONS", ""), {"CONN_MAX_AGE": None}),
    }


DATABASES = {"default": _database()}
