"""The tests' settings with persistent, unchecked connections, as a project may have them."""

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"] |= {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": False}
