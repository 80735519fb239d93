"""Settings for a connection pooler: the process neither listens for notifications nor sends any."""

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
