"""The tests' settings, in which a start never ends: ``HANG_AT`` is "import" or "connection".

A file ``hangs`` in the folder ``HANG_IN`` shows that it has come so far.
"""

import os
import threading
from pathlib import Path

from django.db.backends.signals import connection_created

from tests.settings import *  # noqa: F403


def hang(**_):
    (Path(os.environ["HANG_IN"]) / "hangs").touch()
    threading.Event().wait()


if os.environ["HANG_AT"] == "import":
    hang()
connection_created.connect(hang)
