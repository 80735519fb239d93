"""SQLite as the page on settings wants it."""

from tests.checks.bare_sqlite import *  # noqa: F403
from tests.checks.bare_sqlite import DATABASES

DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL;"}
