"""The tests' settings with a LOGGING whose handler blocks while stderr is a full pipe.

A rename of the file at ``HANG_AT``, other than the first, never returns, as on a disk that hangs.
"""

import itertools
import os
import sys
import threading
from pathlib import Path

from tests.settings import *  # noqa: F403

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stream": {"class": "logging.StreamHandler"}},
    "loggers": {"horsies_django": {"handlers": ["stream"], "level": "INFO"}},
}

_renames = itertools.count()


def _hang(event, arguments):
    if event == "os.rename" and os.environ["HANG_AT"] in map(str, arguments) and next(_renames):
        Path(os.environ["HANG_AT"]).with_name("hangs").touch()
        threading.Event().wait()


if "HANG_AT" in os.environ:
    sys.addaudithook(_hang)
