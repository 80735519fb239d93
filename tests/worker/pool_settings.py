"""The tests' settings with a small pool of Django."""

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"]["CONN_MAX_AGE"] = 0
DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {"min_size": 1, "max_size": 2}
