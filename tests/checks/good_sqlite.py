"""SQLite with the settings that docs/settings.md recommends."""

from tests.checks.bare_sqlite import *  # noqa: F403
from tests.checks.bare_sqlite import DATABASES

DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL;"}
