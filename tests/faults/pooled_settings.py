"""The tests' settings behind a pooler in transaction mode, as Django's documentation requires."""

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
