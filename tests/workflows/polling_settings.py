"""The settings of the tests behind a pooler: who is told so neither listens on its connection nor tells of ends."""

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
