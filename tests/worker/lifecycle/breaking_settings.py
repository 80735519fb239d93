"""The tests' settings, which break parts of a process on demand: ``BREAK_AT`` holds the path of a folder.

A file ``runner`` in it keeps runners from starting; ``reaper`` breaks the reaper's next statement, and ``producer``
that of a runner's producer.
"""

import os
import sys
import threading
from pathlib import Path

from django.db.backends.signals import connection_created

from tests.settings import *  # noqa: F403

FOLDER = Path(os.environ["BREAK_AT"])
IS_RUNNER = sys.argv[0].endswith("child.py")

if IS_RUNNER and (FOLDER / "runner").exists():
    raise RuntimeError("these settings can't be read")


def break_if_requested(execute, sql, params, many, context):
    name = threading.current_thread().name
    if name == "horsies-reaper" or "horsies_reaper" in sys.argv:
        part = "reaper"
    else:
        part = "producer" if IS_RUNNER and name == "MainThread" else ""
    if part and (FOLDER / part).exists():
        raise RuntimeError(f"the {part} is broken")
    return execute(sql, params, many, context)


def watch(sender, connection, **kwargs):
    connection.execute_wrappers.append(break_if_requested)


connection_created.connect(watch)
